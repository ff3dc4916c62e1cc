"""Confidence intervals (95%) of a metric on a test set of N independent samples.

They show how much the value would vary with other test samples. They do not include the variation between
training seeds.

A bootstrap resample is described by how often each sample occurs in it: `weights` [B, N] has one row per
resample, and each row sums to N. Metrics that can be computed from such weights do so for all resamples at
once (`by_weights`); any other metric is evaluated one resample at a time (`bootstrap`).

Samples of one group, such as the images of a patient, are not independent: a model is right or wrong on most
of them together. Resamples then consist of whole groups, as many as there are. Their sizes differ, so a row
need not sum to N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Statistic = Callable[[Tensor], Tensor]
"""Takes the weights [B, N] of resamples and returns their values [B] or [B, J]."""

Z = 1.959963984540054
"""The normal distribution's 97.5% quantile."""

FEWEST, MOST = 200, 1000
"""Smallest and largest number of resamples. Between these, as many as `WORK` allows."""

WORK = 8_000_000
"""Number of probabilities (resamples x samples x classes) that a bootstrap may visit before it is limited to
`FEWEST`."""

AT_ONCE = 4_000_000
"""Number of weights (resamples x samples) in memory at a time."""

SEED = 20_231
"""Fixed, so that the same predictions always have the same interval."""


def wilson(share: Tensor, samples: Tensor) -> Tensor:
    """Wilson's score interval [..., 2] of shares [...] of the given numbers of samples [...]; NaN if there
    are none.

    Unlike the normal interval it stays inside [0, 1] and is right for shares near either end.

    >>> [round(x, 3) for x in wilson(torch.tensor(0.9), torch.tensor(100)).tolist()]
    [0.826, 0.945]
    """
    share, samples = share.cpu().double(), samples.cpu().double()
    scale = 1 + Z * Z / samples
    middle = (share + Z * Z / (2 * samples)) / scale
    half = Z / scale * (share * (1 - share) / samples + Z * Z / (4 * samples * samples)).sqrt()
    # At a share of 0 or 1, that end of the interval is exact, but rounding would leave it slightly off.
    low = torch.where(share > 0, middle - half, torch.zeros_like(share))
    high = torch.where(share < 1, middle + half, torch.ones_like(share))
    ends = torch.stack([low, high], -1)
    return torch.where((samples > 0).unsqueeze(-1), ends, torch.full_like(ends, torch.nan))


def of_the_mean(values: Tensor) -> Tensor:
    """The normal interval [2] of the mean of values [N] that are never negative; NaN for a single value.

    >>> [round(x, 3) for x in of_the_mean(torch.tensor([0.0, 1.0, 2.0, 3.0])).tolist()]
    [0.235, 2.765]
    """
    values = values.cpu().double()
    half = Z * values.std() / len(values) ** 0.5 if len(values) > 1 else values.new_tensor(torch.nan)
    return torch.stack([(values.mean() - half).clamp_min(0), values.mean() + half])


def of_weighted_mean(values: Tensor) -> Statistic:
    """The means [B] of values [N] in resamples.

    >>> of_weighted_mean(torch.tensor([1.0, 2.0]))(torch.tensor([[2.0, 0.0], [1.0, 1.0]])).tolist()
    [1.0, 1.5]
    """
    return lambda weights: weights @ values.to(weights) / weights.sum(1)


def one_by_one(
    function: Callable[[Tensor, Tensor], Tensor], probabilities: Tensor, labels: Tensor
) -> Statistic:
    """Any metric of resamples, computed one after the other."""

    def statistic(weights: Tensor) -> Tensor:
        everyone = torch.arange(len(labels), device=weights.device)
        chosen = (everyone.repeat_interleave(row.long()) for row in weights)
        return torch.stack([function(probabilities[i], labels[i]) for i in chosen])

    return statistic


def resamples(samples: int, classes: int, fewest: int = FEWEST) -> int:
    """The number of resamples for a test set of this size.

    >>> resamples(200, 10), resamples(2000, 10), resamples(10_000, 100)
    (1000, 400, 200)
    """
    return max(fewest, min(MOST, WORK // max(samples * classes, 1)))


def drawn_weights(
    samples: int, classes: int, device: torch.device, fewest: int = FEWEST, groups: Tensor | None = None
) -> Iterator[Tensor]:
    """The weights [B, N] of all resamples, in parts that fit in memory.

    They are drawn on the CPU, so that they are the same on every device.
    groups: int64 [N], numbered from 0 on. None: each sample is drawn by itself.
    """
    drawn_from = samples if groups is None else int(groups.max()) + 1
    generator = torch.Generator().manual_seed(SEED)
    left, part = resamples(samples, classes, fewest), max(1, AT_ONCE // max(samples, 1))
    while left > 0:
        rows = min(part, left)
        drawn = torch.randint(drawn_from, (rows, drawn_from), generator=generator)
        weights = torch.zeros(rows, drawn_from).scatter_add_(1, drawn, torch.ones(rows, drawn_from))
        yield (weights if groups is None else weights[:, groups.cpu()]).to(device)
        left -= rows


def by_weights(statistic: Statistic, probabilities: Tensor, groups: Tensor | None = None) -> Tensor:
    """The percentile interval [2] or [J, 2] of a statistic: weights [B, N] to values [B] or [B, J]. NaN for a
    single group, which does not show how much groups differ."""
    ends = percentiles(resampled(statistic, probabilities, groups))
    return ends if groups is None or int(groups.max()) > 0 else torch.full_like(ends, torch.nan)


def resampled(statistic: Statistic, probabilities: Tensor, groups: Tensor | None = None) -> Tensor:
    """The statistic [B] or [B, J] of every resample."""
    samples, classes = probabilities.shape
    parts = drawn_weights(samples, classes, probabilities.device, groups=groups)
    return torch.cat([statistic(weights).cpu() for weights in parts])


def bootstrap(function: Callable[[Tensor, Tensor], Tensor], probabilities: Tensor, labels: Tensor) -> Tensor:
    """The percentile interval [2] or [J, 2] of any metric, from `FEWEST` resamples, one after the other."""
    generator = torch.Generator().manual_seed(SEED)
    found = []
    for _ in range(FEWEST):
        chosen = torch.randint(len(labels), (len(labels),), generator=generator).to(labels.device)
        found.append(function(probabilities[chosen], labels[chosen]).cpu())
    return percentiles(torch.stack(found))


def percentiles(values: Tensor) -> Tensor:
    """The 2.5% and 97.5% quantiles over the first dimension, [2] or [J, 2].

    Resamples in which the metric is not defined (NaN) are left out.
    """
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    return torch.nanquantile(values.double(), ends, dim=0).movedim(0, -1)
