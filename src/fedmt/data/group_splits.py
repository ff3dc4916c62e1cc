"""The splits of splits.py and the test of preparation.py for whole groups: no group is at two places.

A requested number of samples is met as closely as whole groups allow, and a note gives the actual numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.data.groups import Chosen, class_counts, deal, in_order, pick
from fedmt.data.splits import CENTERS, REFERENCE, Indices, Split
from fedmt.data.uneven import non_iid_priors


def chosen_groups(
    truth: Tensor, groups: Tensor, targets: Indices, seed: Sequence[int], at_least_one: bool, spared: int = 0
) -> Chosen:
    """Picks samples in whole groups (see `groups.pick`): bool [N]."""
    numbers = in_order(groups)
    counts = class_counts(numbers, truth.cpu().numpy(), len(targets))
    return pick(counts, targets, default_rng(list(seed)), at_least_one, spared)[numbers]


def group_split(
    truth: Tensor,
    groups: Tensor,
    names: Sequence[str],
    per_class: Indices,
    centers: int,
    samples: int | None,
    gamma: float | None,
    seed: int,
) -> Split:
    """A reference center with close to `per_class` [classes] samples of each class, and `centers` that share
    the rest.

    truth, groups: int64 [N]. samples: without it, the centers share all the rest, as evenly as the groups
    allow. With it, no center has more than this number, balanced over the classes or, with `gamma`, by its
    non-IID prior.
    """
    classes = len(names)
    numbers = in_order(groups)
    counts = class_counts(numbers, truth.cpu().numpy(), classes)
    for name, count in zip(names, (counts > 0).sum(0).tolist(), strict=True):
        if count < 2:
            raise FedmtError(
                f"Class '{name}' has samples of {count} group{('' if count == 1 else 's')}, but the "
                "reference center and the other centers need one each, because groups are never separated. "
                "Add groups or leave out the class."
            )
    reference = pick(counts, per_class, default_rng([seed, REFERENCE]), spared=1)
    rng = default_rng([seed, CENTERS])
    rest = np.flatnonzero(~reference)
    limits = None if samples is None else _limits(classes, centers, samples, gamma, seed, rng)
    goes = np.full(len(counts), -1, dtype=np.int64)
    goes[rest] = deal(counts[rest], limits, centers, rng)
    held = np.stack([counts[goes == c].sum(0) for c in range(centers)])
    empty = int((held.sum(1) == 0).sum())
    if empty:
        least = "" if samples is None else f" with at most {samples} samples each, by class"
        left = "1 group is" if len(rest) == 1 else f"{len(rest)} groups are"
        raise FedmtError(
            f"Groups are never separated, so {empty} of {centers} centers would have no samples: {left} left "
            f"for them{least}. Lower the number of centers or the reference center's part"
            + ("." if samples is None else ", or raise samples or leave it out.")
        )
    places = [torch.from_numpy(rng.permutation(np.flatnonzero(reference[numbers])))]
    places += [torch.from_numpy(rng.permutation(np.flatnonzero(goes[numbers] == c))) for c in range(centers)]
    notes = kept_whole("the reference center has", names, per_class, counts[reference].sum(0))
    if samples is not None and (held.sum(1) != samples).any():
        sizes, unused = held.sum(1), int(counts[rest].sum() - held.sum())
        notes += (
            f"Groups are kept whole, so the centers have {sizes.min():,} to {sizes.max():,} samples instead "
            f"of {samples:,}. {unused:,} samples are not used.",
        )
    return Split(places[0], tuple(places[1:]), notes)


def _limits(
    classes: int, centers: int, samples: int, gamma: float | None, seed: int, rng: np.random.Generator
) -> Indices:
    """The number of samples of each class that a center may have, [centers, classes]. Rows sum to
    `samples`."""
    if gamma is not None:
        priors = non_iid_priors(classes, centers, gamma, seed).numpy()
        return np.stack([rng.multinomial(samples, prior) for prior in priors]).astype(np.int64)
    base, remainder = divmod(samples, classes)
    extra = np.stack([rng.permutation(classes) < remainder for _ in range(centers)])
    return base + extra.astype(np.int64)


def kept_whole(who: str, names: Sequence[str], asked: Indices, has: Indices) -> tuple[str, ...]:
    """A note on classes whose numbers differ from those requested. Empty if there are none."""
    other = [
        f"{name} {found:,} instead of {number:,}"
        for name, number, found in zip(names, asked.tolist(), has.tolist(), strict=True)
        if found != number
    ]
    if not other:
        return ()
    return (f"Groups are kept whole, so {who} other numbers than requested: {'; '.join(other)}.",)
