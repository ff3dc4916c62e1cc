"""Prepares a labeled set for its split: sets test samples aside, and chooses, samples down and leaves out
classes.

Pure functions of labels. All random choices depend on the seed. The test samples depend only on the seed, the
set and their number per class, so they are the same for every split.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError, nearest
from fedmt.core.labels import LabelSpace
from fedmt.data.group_splits import chosen_groups
from fedmt.data.groups import class_counts, in_order
from fedmt.data.specs import BenchmarkSpec
from fedmt.data.splits import Indices, reference_counts

# One random stream for each purpose. Streams 0 to 2 belong to the splits.
_TEST, _FEWER_TESTS, _DOWN = range(3, 6)


@dataclass(frozen=True, eq=False)
class Selection:
    """Samples of a set and their labels, without their values.

    positions: int64 [n], in the set.
    labels: label space name -> int64 [n], positions in that space.
    spaces: the label spaces, under the same names.
    groups: int64 [n], equal for samples that are never separated; None if there are no groups.
    """

    positions: Tensor
    labels: Mapping[str, Tensor]
    spaces: Mapping[str, LabelSpace]
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, chosen: Tensor) -> Selection:
        """The samples at `chosen`, int64 [m], positions in this selection."""
        labels = {name: labels[chosen] for name, labels in self.labels.items()}
        groups = None if self.groups is None else self.groups[chosen]
        return replace(self, positions=self.positions[chosen], labels=labels, groups=groups)

    def keep(self, classes: Mapping[str, Tensor]) -> Selection:
        """The samples whose labels are all in `classes` (space name -> bool [its classes]), renumbered."""
        inside = torch.ones(len(self), dtype=torch.bool)
        for name, kept in classes.items():
            inside &= kept[self.labels[name]]
        chosen = self.take(inside.nonzero().flatten())
        labels, spaces = dict(chosen.labels), dict(chosen.spaces)
        for name, kept in classes.items():
            labels[name] = (kept.cumsum(0) - 1)[labels[name]]
            names = [c for c, stays in zip(spaces[name], kept.tolist(), strict=True) if stays]
            spaces[name] = LabelSpace(name, names)
        return replace(chosen, labels=labels, spaces=spaces)

    def counts(self, name: str) -> Indices:
        """The number of samples of each class of a space, [classes]."""
        counts: Indices = self.labels[name].bincount(minlength=len(self.spaces[name])).numpy()
        return counts

    def group_counts(self, name: str) -> Indices:
        """The number of groups with samples of each class of a space, [classes]."""
        assert self.groups is not None
        labels = self.labels[name].numpy()
        found = class_counts(in_order(self.groups), labels, len(self.spaces[name]))
        return np.asarray((found > 0).sum(0), dtype=np.int64)

    def occurring(self) -> dict[str, Tensor]:
        """The classes of each space that occur in the samples: name -> bool [its classes]."""
        return {name: torch.from_numpy(self.counts(name) > 0) for name in self.spaces}


def prepare(
    train: Selection, test: Selection, spec: BenchmarkSpec, seed: int
) -> tuple[Selection, Selection, tuple[str, ...]]:
    """The training and test samples that the benchmark requests, and notes about what was changed."""
    wanted = spec.wanted
    notes: list[str] = []
    if spec.subset is not None:
        kept = first_classes(train, wanted, spec.subset)
        train, test = train.keep(kept), test.keep(kept)
    # These are for sets whose classes differ in size, where the smallest may be too small. `per_class` with a
    # separate test part is for balanced sets. There, such a class is a mistake, and the split rejects it.
    if spec.reference_share is not None or spec.split == "natural" or spec.sets_aside:
        train, test, left_out = leave_out(train, test, spec)
        notes += left_out
    before = train.counts(wanted)
    train = sample_down(train, wanted, spec.at_most, seed)
    sampled = [
        f"{name} {after:,} of {all_:,}"
        for name, all_, after in zip(train.spaces[wanted], before, train.counts(wanted), strict=True)
        if after < all_
    ]
    if sampled:
        notes.append(f"Sampled down (at_most): {'; '.join(sampled)}.")
    if spec.test_samples is not None:
        test = fewer(test, wanted, spec.test_samples, seed)
    return train, test, tuple(notes)


def leave_out(
    train: Selection, test: Selection, spec: BenchmarkSpec
) -> tuple[Selection, Selection, list[str]]:
    """Removes the classes that have too few samples for every center to get one from both sets.

    In groups, a class needs one for the test, one for the reference center and one for the other centers.
    """
    space = train.spaces[spec.wanted]
    what = "samples" if train.groups is None else "groups"
    kept, counts, needs = (_enough_samples if train.groups is None else _enough_groups)(train, test, spec)
    if kept.all():
        return train, test, []
    small = [f"{name} ({n:,})" for name, n, stays in zip(space, counts, kept, strict=True) if not stays]
    if kept.sum() < 2:
        raise FedmtError(
            f"benchmark: only {kept.sum()} of the {len(space)} classes of '{space.name}' have enough "
            f"{what}: {needs}. Too few: {', '.join(small)}. Add {what}, or lower "
            + (f"{spec.sets_aside}, " if spec.sets_aside else "")
            + ("reference_share" if spec.per_class is None else "per_class")
            + " or the number of centers."
        )
    stays = {spec.wanted: torch.from_numpy(kept)}
    remaining = train.keep(stays)
    others = {name: found for name, found in remaining.occurring().items() if name != spec.wanted}
    notes = [f"Left out of '{space.name}' because of too few {what}: {', '.join(small)}; {needs}."]
    for name, found in others.items():
        gone = [c for c, there in zip(train.spaces[name], found.tolist(), strict=True) if not there]
        if gone:
            notes.append(f"Left out of '{name}', because no wanted class is left: {', '.join(gone)}.")
    return train.keep({**stays, **others}), test.keep({**stays, **others}), notes


def _enough_samples(
    train: Selection, test: Selection, spec: BenchmarkSpec
) -> tuple[NDArray[np.bool_], Indices, str]:
    """Which classes have enough samples, how many each has, and how many it needs."""
    centers = max(1, sum(spec.spaces.values()))

    def enough(sizes: Indices) -> NDArray[np.bool_]:
        if spec.reference_share is not None:
            return sizes - reference_counts(sizes, spec.reference_share) >= centers
        return sizes - (spec.per_class or 0) >= centers

    counts, aside = train.counts(spec.wanted), spec.test_per_class or 0
    kept = enough(counts)
    least = aside + next(n for n in itertools.count(1) if enough(np.array([n])).all())
    if aside:
        counts = counts + test.counts(spec.wanted)
    needs = (
        f"a class needs {least:,} samples"
        + (f", {aside:,} of them for the test," if aside else "")
        + (" in addition to those set aside for the test" if spec.test_share is not None else "")
        + f" so that the reference center and each of {centers} centers have one"
    )
    return kept, counts, needs


def _enough_groups(
    train: Selection, test: Selection, spec: BenchmarkSpec
) -> tuple[NDArray[np.bool_], Indices, str]:
    """The same for groups. A center may lack a class, because few centers have patients of every class."""
    counts = train.group_counts(spec.wanted)
    kept = counts >= 2
    if not spec.sets_aside:
        return kept, counts, "a class needs 2 groups, for the reference center and the other centers"
    counts = counts + test.group_counts(spec.wanted)
    return kept, counts, "a class needs 3 groups, for the test, the reference center and the other centers"


def set_aside_counts(data: Selection, spec: BenchmarkSpec) -> Indices:
    """The number of samples of each class that the benchmark sets aside for the test, [classes]."""
    if spec.test_share is not None:
        return reference_counts(data.counts(spec.wanted), spec.test_share)
    return np.full(len(data.spaces[spec.wanted]), spec.test_per_class or 0, dtype=np.int64)


def set_aside(data: Selection, wanted: str, each: Indices | int, seed: int) -> tuple[Selection, Selection]:
    """Returns `each` samples of a class, or all that it has, and the others, both in the order of the set.

    each: a number for all classes, or one for each, [classes].

    Groups are kept whole, so there may be fewer. Two groups of each class are left for training if it has
    three.
    """
    targets = np.broadcast_to(np.asarray(each, dtype=np.int64), (len(data.spaces[wanted]),))
    if data.groups is not None:
        whole = chosen_groups(data.labels[wanted], data.groups, targets, [seed, _TEST], True, spared=2)
        return _where(data, whole), _where(data, ~whole)
    rng = default_rng([seed, _TEST])
    truth = data.labels[wanted].numpy()
    chosen = np.zeros(len(data), dtype=bool)
    for k in range(len(data.spaces[wanted])):
        chosen[rng.permutation(np.flatnonzero(truth == k))[: targets[k]]] = True
    return _where(data, chosen), _where(data, ~chosen)


def first_classes(data: Selection, wanted: str, count: int) -> dict[str, Tensor]:
    """The first `count` classes of the first space that is not the wanted one, for `Selection.keep`.

    In the other spaces, including the wanted one, the classes that occur with them are kept.
    """
    first = next((name for name in data.spaces if name != wanted), None)
    if first is None:
        raise FedmtError(
            "benchmark.subset: this chooses classes of another space than the wanted one, but "
            f"benchmark.spaces has only '{wanted}'. Leave it out."
        )
    size = len(data.spaces[first])
    if count >= size:
        return {}
    kept = torch.arange(size) < count
    inside = data.take(kept[data.labels[first]].nonzero().flatten())
    return {**inside.occurring(), first: kept}


def check_limits(at_most: Mapping[str, int], space: LabelSpace) -> None:
    """Checks that the classes to be sampled down are classes."""
    for name in at_most:
        if name not in space:
            raise FedmtError(
                f"benchmark.at_most: '{name}' is not a class of '{space.name}'.{nearest(name, space)}"
            )


def sample_down(data: Selection, wanted: str, at_most: Mapping[str, int], seed: int) -> Selection:
    """Keeps at most the given number of samples of each class in `at_most`, at random."""
    rng = default_rng([seed, _DOWN])
    truth = data.labels[wanted].numpy()
    chosen = np.ones(len(data), dtype=bool)
    for k, name in enumerate(data.spaces[wanted]):
        if name in at_most:
            chosen[rng.permutation(np.flatnonzero(truth == k))[at_most[name] :]] = False
    return _where(data, chosen)


def fewer(data: Selection, wanted: str, count: int, seed: int) -> Selection:
    """`count` of the samples, with class counts as equal as the samples allow."""
    if count >= len(data):
        return data
    rng = default_rng([seed, _FEWER_TESTS])
    truth = data.labels[wanted].numpy()
    # Each sample's turn within its class. All first turns come first, then all second turns.
    turns = np.empty(len(data), dtype=np.int64)
    for k in range(len(data.spaces[wanted])):
        mine = np.flatnonzero(truth == k)
        turns[mine] = rng.permutation(len(mine))
    shuffled = rng.permutation(len(data))
    chosen = np.zeros(len(data), dtype=bool)
    chosen[shuffled[np.argsort(turns[shuffled], kind="stable")[:count]]] = True
    return _where(data, chosen)


def _where(data: Selection, chosen: NDArray[np.bool_]) -> Selection:
    return data.take(torch.from_numpy(np.flatnonzero(chosen)))
