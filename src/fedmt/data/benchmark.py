"""One fully labeled set, split into a federation.

The steps are, in this order: set test samples aside; choose, leave out and sample down classes
(preparation.py); split the rest (splits.py); fill up small classes with copies (copies.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.core.section import Section
from fedmt.data.center import Center, Federation
from fedmt.data.copies import choose_copies, copy_numbers, rule_targets
from fedmt.data.group_splits import group_split, kept_whole
from fedmt.data.loading import Vocabulary
from fedmt.data.preparation import Selection, check_limits, prepare, set_aside, set_aside_counts
from fedmt.data.sampleset import SampleSet
from fedmt.data.sources import has_test_part, read_source
from fedmt.data.specs import BenchmarkSpec
from fedmt.data.splits import Indices, Split, iid_split, natural_split, reference_counts, share_split
from fedmt.data.uneven import long_tailed_split, non_iid_split
from fedmt.inputs.base import Input, Views


def load_benchmark(
    spec: BenchmarkSpec, options: Section, vocabulary: Vocabulary, seed: int, views: Views
) -> tuple[Federation, tuple[str, ...]]:
    """A labeled set split into a federation, and notes about what could not be done as requested.

    Labels in a space that the set itself does not have are derived from the config's correspondence, which
    must then be a partition. options: the options of the input. views: how augmented copies may vary.
    """
    vocabulary.check(spec.wanted)
    data = read_source(spec.data, options, vocabulary.spaces.get(spec.wanted), "benchmark", "train")
    if spec.wanted not in data.labels:
        own = f" The data itself has {listed(data.labels)}." if data.labels else ""
        raise FedmtError(
            f"benchmark: the data has no labels in the wanted space '{spec.wanted}'; list its classes under "
            f"[spaces].{own}"
        )
    check_limits(spec.at_most, data.spaces[spec.wanted])
    train = _labeled(data, spec, vocabulary)
    whole: tuple[str, ...] = ()
    if spec.sets_aside:
        held = data
        asked = set_aside_counts(train, spec)
        test, train = set_aside(train, spec.wanted, asked, seed)
        if train.groups is not None:
            whole = kept_whole(
                "the test has", data.spaces[spec.wanted].classes, asked, test.counts(spec.wanted)
            )
    else:
        held = _read_test(spec, options, data.spaces[spec.wanted])
        test = _labeled(held, spec, vocabulary, data)
    train, test, notes = prepare(train, test, spec, seed)
    goal, truth = train.spaces[spec.wanted], train.labels[spec.wanted]
    count = sum(spec.spaces.values())
    split = _split(spec, truth, train.groups, goal, count, seed)
    places = [split.reference, *split.centers]
    targets = rule_targets(_counts(places, truth, goal), spec.augment_to, [c in spec.at_most for c in goal])
    copies = choose_copies(places, truth, targets, seed)
    kind = data.input if isinstance(data.input, type) else type(data.input)
    sort = kind.of(data.samples, "benchmark")

    def center(place: int, name: str, space: LabelSpace, matrix: Correspondence | None = None) -> Center:
        """The samples at a place (0 is the reference center): its own samples, then the copies of them."""
        own = torch.cat([places[place], copies[place]])
        values = data.samples[train.positions[places[place]]]
        if len(copies[place]):
            chosen = train.positions[copies[place]]
            made = sort.copies(data.samples, chosen, views, copy_numbers(seed, place))
            values = torch.cat([values, made])
        labels = train.labels[space.name][own]
        groups = None if train.groups is None else train.groups[own]
        known = truth[own] if place else None
        return Center(name, values, space, labels, matrix, known, data.input, groups=groups)

    first = _test_set(held, test, goal, data.input)
    tests = [first]
    centers: list[Center] = []
    digits = len(str(count))
    for name, number in spec.spaces.items():
        space, matrix = train.spaces[name], _co_occurrence(train, spec.wanted, name)
        if name != spec.wanted:
            tests.append(replace(first, name=f"test ({name})", space=space, labels=test.labels[name]))
        for _ in range(number):
            place = len(centers) + 1
            centers.append(center(place, f"center-{place:0{digits}d}", space, matrix))
    federation = Federation(goal, center(0, "reference", goal), tuple(centers), tuple(tests))
    sources = data.notes if held is data else (*data.notes, *held.notes)
    augmented = _copies_note(goal, _counts(places, truth, goal), targets) if spec.augment_to else ()
    return federation, (*sources, *whole, *notes, *split.notes, *augmented)


def _test_set(held: SampleSet, test: Selection, goal: LabelSpace, input: Input | type[Input]) -> Center:
    """The samples that are tested on, labeled in the wanted space. held: the set that they are taken from."""
    places = test.positions.tolist()
    return Center(
        "test",
        held.samples if len(test) == len(held) else held.samples[test.positions],
        goal,
        test.labels[goal.name],
        input=input,
        snippets=None if held.snippets is None else tuple(held.snippets[i] for i in places),
        groups=test.groups,
        sites=None if held.sites is None else tuple(held.sites[i] for i in places),
    )


def _read_test(spec: BenchmarkSpec, options: Section, goal: LabelSpace) -> SampleSet:
    """The benchmark's test part: the one named in the config, or that of the source itself."""
    if spec.test is None and not has_test_part(spec.data):
        raise FedmtError(
            f"benchmark: source '{spec.data.source}' has no test part of its own; set benchmark.test, or "
            "benchmark.test_per_class or benchmark.test_share to set samples aside."
        )
    # A split given for the training data does not apply to the test part.
    test = spec.test or spec.data.model_copy(update={"split": None})
    held = read_source(test, options, goal, "benchmark.test", "test")
    if spec.wanted not in held.labels:
        raise FedmtError(f"benchmark.test: its samples have no labels in '{spec.wanted}'.")
    return held


def _labeled(
    data: SampleSet, spec: BenchmarkSpec, vocabulary: Vocabulary, train: SampleSet | None = None
) -> Selection:
    """All samples of a set, labeled in every space of the benchmark. `train`: for a test set, the training
    set."""
    goal = data.spaces[spec.wanted]
    spaces, labels = {spec.wanted: goal}, {spec.wanted: data.labels[spec.wanted]}
    everything = torch.arange(len(data))
    for name in spec.spaces:
        if name in data.labels:
            spaces[name], labels[name] = data.spaces[name], data.labels[name]
            continue
        if train is not None and name in train.labels:
            both = Selection(torch.arange(len(train)), train.labels, train.spaces)
            matrix = _co_occurrence(both, spec.wanted, name)
            if not matrix.is_partition:
                raise FedmtError(f"benchmark.test: its samples have no labels in '{name}'.")
        else:
            if name not in vocabulary.spaces:
                there = dict.fromkeys([*data.spaces, *vocabulary.spaces])
                raise FedmtError(
                    f"benchmark.spaces: the data has no labels in '{name}', and it is not in [spaces]."
                    f"{nearest(name, there)} Known: {listed(there)}."
                )
            space = vocabulary.space(name, "benchmark.spaces")
            known = vocabulary.correspondence(goal, space, None, f"correspondences.{name}")
            if known is None:
                raise FedmtError(
                    f"benchmark: the data has no labels in '{name}'; give correspondences.{name} to derive "
                    "them."
                )
            matrix = known
        spaces[name], labels[name] = matrix.coarse, matrix.map_labels(data.labels[spec.wanted])
    for name, space in spaces.items():
        if train is not None and train.spaces.get(name, space) != space:
            raise FedmtError(
                f"benchmark.test: space '{name}' has different classes than in benchmark.data: "
                f"{listed(space)}."
            )
    return Selection(everything, labels, spaces, data.groups)


def _split(
    spec: BenchmarkSpec, truth: Tensor, groups: Tensor | None, goal: LabelSpace, count: int, seed: int
) -> Split:
    classes, names = len(goal), goal.classes
    if groups is not None:
        sizes = truth.bincount(minlength=classes).numpy()
        share = spec.reference_share
        asked = np.full(classes, spec.per_class) if share is None else reference_counts(sizes, share)
        _refuse_without_samples(spec)
        if spec.split == "long-tailed":
            raise FedmtError(
                "benchmark.split: whole groups cannot be distributed in long tails. Leave out group_column, "
                "or choose 'iid', 'natural' or 'non-iid'."
            )
        gamma = spec.gamma if spec.split == "non-iid" else None
        return group_split(truth, groups, names, asked, count, spec.samples, gamma, seed)
    if spec.reference_share is not None and spec.split == "iid" and spec.samples is None:
        return share_split(truth, classes, spec.reference_share, count, seed, names)
    per_class: int | Sequence[int]
    if spec.reference_share is not None:
        per_class = reference_counts(truth.bincount(minlength=classes).numpy(), spec.reference_share).tolist()
    else:
        assert spec.per_class is not None
        per_class = spec.per_class
    if spec.split == "iid":
        return iid_split(truth, classes, per_class, count, spec.samples, seed, names)
    if spec.split == "natural":
        return natural_split(truth, classes, per_class, count, seed, names)
    _refuse_without_samples(spec)
    assert spec.samples is not None
    if spec.split == "long-tailed":
        assert spec.imbalance is not None
        return long_tailed_split(truth, classes, per_class, count, spec.samples, spec.imbalance, seed, names)
    return non_iid_split(truth, classes, per_class, count, spec.samples, spec.gamma, seed, names)


def _refuse_without_samples(spec: BenchmarkSpec) -> None:
    if spec.split in ("non-iid", "long-tailed") and spec.samples is None:
        raise FedmtError(f"benchmark: the {spec.split} split needs `samples`, the number at each center.")


def _co_occurrence(data: Selection, wanted: str, name: str) -> Correspondence:
    """M computed from a set that has both labels: the paper's empirical matrix, over all of its samples."""
    fine, coarse = data.spaces[wanted], data.spaces[name]
    pairs = data.labels[name] * len(fine) + data.labels[wanted]
    counts = torch.bincount(pairs, minlength=len(coarse) * len(fine)).view(len(coarse), len(fine)).double()
    totals = counts.sum(0)
    if (totals == 0).any():
        missing = [c for c, n in zip(fine, totals.tolist(), strict=True) if n == 0]
        raise FedmtError(f"benchmark: the data has no sample of {listed(missing)}.")
    return Correspondence(counts / totals, fine, coarse, "benchmark")


def _counts(places: Sequence[Tensor], truth: Tensor, goal: LabelSpace) -> Indices:
    """The total number of samples of each class over all places, [classes]."""
    counts: Indices = truth[torch.cat(list(places))].bincount(minlength=len(goal)).numpy()
    return counts


def _copies_note(goal: LabelSpace, counts: Indices, targets: Indices) -> tuple[str]:
    """A note on the training samples of each class."""
    classes = "; ".join(
        f"{name} {before:,}" + (f" + {after - before:,}" if after > before else "")
        for name, before, after in zip(goal, counts.tolist(), targets.tolist(), strict=True)
    )
    return (
        f"Training samples + augmented copies of them: {classes}. In total {counts.sum():,} + "
        f"{(targets - counts).sum():,}. A copy is only at the place of its original.",
    )
