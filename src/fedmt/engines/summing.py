"""Updates and statistics as sums of integers, for secure aggregation (docs/guides/secure-aggregation.md).

The local engine adds the same integers without masks, so its weights are bit-identical to those of a run
between machines. What both sides must agree on, `Layout`, is determined by the model and by what the
coordinator knows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmt.aggregation import Combined, Weights, all_finite
from fedmt.core.errors import FedmtError
from fedmt.core.static_bn import Statistics, pool
from fedmt.data.center import Federation
from fedmt.engines.randomness import round_half_up
from fedmt.engines.site import Site
from fedmt.privacy.masking.fixed_point import Arrays, Entry, Layout, Vector
from fedmt.privacy.masking.terms import Summing, least_threshold

CHANGE = 3
"""Range of the change of a weight in one round: at most 2^3. Training that changes a weight by more has
diverged."""
CONTROL = 5
"""Range of a gradient. SCAFFOLD's control variates are means of gradients."""
STATISTIC = 4
"""Range of a running statistic: at most 2^4 times the largest of its layer."""
MOMENT = 10
"""Range of a first or second moment, in 64 bits: at most 2^10 times the largest of the reference center's
layer."""

ROOM = 16
"""max_samples may be this many times the size of the largest center before a note is given."""


def check_terms(summing: Summing, federation: Federation, participation: float) -> None:
    """Rejects a federation whose sums could never be revealed, or that have no room for a center's weight."""
    everyone = len(federation.roster.members)
    chosen = max(1, round_half_up(participation * everyone))
    least = least_threshold(everyone)
    if not least <= summing.threshold <= chosen:
        raise FedmtError(
            f"deployment.threshold: {summing.threshold} given, expected at least {least} for {everyone} "
            f"centers, and at most {chosen}, the number that take part in a round (training.participation)."
        )
    for center in (federation.reference, *federation.centers):
        if len(center) > summing.max_samples:
            raise FedmtError(
                f"deployment.max_samples: {summing.max_samples:,} given, but center '{center.name}' has "
                f"{len(center):,} samples."
            )


def precision_notes(summing: Summing | None, federation: Federation, by_samples: bool) -> tuple[str, ...]:
    """A note if `max_samples` is so far above all centers that updates are rounded coarsely."""
    largest = max(map(len, federation.centers), default=0)
    if summing is None or not by_samples or not largest or summing.heaviest <= ROOM * largest:
        return ()
    enough = 1 << (largest - 1).bit_length()
    return (
        f"deployment.max_samples is {summing.max_samples:,}, but the largest center has {largest:,} "
        f"samples. Updates are rounded {summing.heaviest // enough:,} times as coarsely as with {enough:,}.",
    )


def update_layout(
    summing: Summing,
    received: Mapping[str, Tensor],
    parameters: Collection[str],
    local: frozenset[str],
    heads: Sequence[frozenset[str]],
    corrects: bool,
    by_samples: bool,
    centers: int,
) -> Layout:
    """The layout of everything that any center may send of its update.

    received: the model that the centers received; the range of a running statistic depends on its layer's
        values.
    local: what no center sends. heads: a center sends only its own. centers: the largest number of centers in
        a sum.
    """
    groups = {key: number for number, keys in enumerate(heads, 1) for key in keys}
    entries = []
    for name in sorted(received):
        value = received[name]
        if name in local or not value.is_floating_point():
            continue
        shape, group = tuple(value.shape), groups.get(name, 0)
        if name in parameters:
            entries.append(Entry(name, shape, CHANGE, group))
            if corrects:
                entries.append(Entry(f"control:{name}", shape, CONTROL, group, equal=True))
        else:
            entries.append(Entry(name, shape, STATISTIC + _exponent(value), group))
    return Layout(tuple(entries), centers, summing.heaviest if by_samples else 1)


def layout_at(summing: Summing, site: Site, received: Mapping[str, Tensor], centers: int) -> Layout:
    """The same for a site's model."""
    parameters = frozenset(name for name, _ in site.trainer.model.named_parameters())
    by_samples = site.method.training.weights == "samples"
    return update_layout(
        summing, received, parameters, site.local, site.heads, site.strategy.corrects, by_samples, centers
    )


def moment_layout(summing: Summing, own: Statistics, centers: int) -> Layout:
    """The layout of the moments of batch-norm layers. own: the reference center's statistics of the same
    model."""
    entries = tuple(
        Entry(name, value.shape, MOMENT + _exponent(torch.from_numpy(value)))
        for name, value in sorted(moments(own).items())
    )
    return Layout(entries, centers, summing.heaviest, bits=64)


def _exponent(value: Tensor) -> int:
    """The smallest e >= -20 with |value| <= 2^e. It is at most 100, so that a scale is always finite."""
    largest = float(value.abs().max()) if value.numel() else 0.0
    return min(100, math.ceil(math.log2(max(largest, 2.0**-20)))) if math.isfinite(largest) else 100


def moments(statistics: Mapping[str, Tensor]) -> Arrays:
    """First and second moments in float64, under the names of mean and variance. Unlike these, they can be
    added."""
    found: Arrays = {}
    for name, value in statistics.items():
        array = value.detach().cpu().double().numpy()
        if name.endswith(".running_var"):
            mean = statistics[name.removesuffix("var") + "mean"].detach().cpu().double().numpy()
            array = array + mean**2
        found[name] = array
    return found


def arrays(update: Mapping[str, Tensor]) -> Arrays:
    return {name: value.detach().cpu().float().numpy() for name, value in update.items()}


class SummedUpdates:
    """The updates of one round, with the interface of `Received`, but single centers cannot be
    distinguished."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.clipped = 0
        """After `combine`: the number of entries of all updates that were out of range and were clipped."""
        self._total = np.zeros(layout.length, layout.dtype)
        self._present = 0

    def add(self, center: str, update: Weights, weight: float) -> bool:
        """Adds an update. Returns False and adds nothing if it is not finite."""
        if not all_finite(update.values()):
            return False
        self.add_total(self.layout.encode(arrays(update), int(weight))[0], 1)
        return True

    def add_total(self, total: Vector, present: int) -> None:
        """The sum of several centers' vectors."""
        np.add(self._total, total, out=self._total)
        self._present += present

    def combine(self, root: Weights | None = None) -> Combined:
        mean = self.layout.decode(self._total, self._present)
        self.clipped = mean.clipped
        tensors = {name: torch.from_numpy(value).to(self.device) for name, value in mean.means.items()}
        return Combined(tensors, mean.counts)


class SummedStatistics:
    """Batch-norm statistics of several sets of samples, pooled as in `static_bn.pool`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._total = np.zeros(layout.length, layout.dtype)
        self._present = 0

    def add(self, samples: int, statistics: Statistics) -> None:
        self.add_total(self.layout.encode(moments(statistics), samples)[0], 1)

    def add_total(self, total: Vector, present: int) -> None:
        np.add(self._total, total, out=self._total)
        self._present += present

    def result(self) -> Statistics:
        found = self.layout.decode(self._total, self._present).means
        pooled: Statistics = {}
        for name, value in found.items():
            if name.endswith(".running_var"):
                value = np.maximum(value - found[name.removesuffix("var") + "mean"] ** 2, 0)
            pooled[name] = torch.from_numpy(value).float()
        return pooled


def pooled_statistics(
    parts: Iterable[tuple[float, Statistics]], summing: Summing | None, centers: int
) -> Statistics:
    """Pools the number of samples and the statistics of each center. The reference center's come first and
    determine the range of the others. centers: the largest number of centers in a sum. summing: None pools
    them as they are."""
    if summing is None:
        return pool(parts)
    total: SummedStatistics | None = None
    for samples, found in parts:
        total = total or SummedStatistics(moment_layout(summing, found, centers))
        total.add(int(samples), found)
    return {} if total is None else total.result()
