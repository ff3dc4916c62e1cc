"""From what a config says of the data to a `Federation`.

Two ways to say it: a *federation* (a reference center, centers, tests, each with its own source), or
a *benchmark*, one fully labelled set that is split into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.data.cifar100 import read_cifar100
from fedmt.data.fashion_mnist import read_fashion_mnist
from fedmt.data.folder import read_folder
from fedmt.data.idx import read_idx, read_mnist_folder
from fedmt.data.imageset import ImageOptions, ImageSet
from fedmt.data.manifest import read_manifest
from fedmt.data.npz import read_npz
from fedmt.data.specs import (
    BenchmarkSpec,
    CenterSpec,
    CorrespondenceSpec,
    ImageSpec,
    ReferenceSpec,
    SourceSpec,
    TestSpec,
)
from fedmt.data.splits import Split, iid_split, non_iid_split
from fedmt.errors import FedmtError, listed, nearest
from fedmt.labels import Correspondence, LabelSpace


@dataclass(frozen=True)
class Vocabulary:
    """The config's label spaces, and its correspondences from the wanted space into the others."""

    spaces: Mapping[str, LabelSpace]
    correspondences: Mapping[str, CorrespondenceSpec]
    where: str

    def space(self, name: str, where: str) -> LabelSpace:
        if name not in self.spaces:
            known = listed(self.spaces) if self.spaces else "none"
            raise FedmtError(
                f"{where}: label space '{name}' is not in [spaces].{nearest(name, self.spaces)} "
                f"Known: {known}."
            )
        return self.spaces[name]

    def check(self) -> None:
        """A correspondence for a space that nobody knows would be ignored in silence."""
        for name in self.correspondences:
            self.space(name, f"{self.where}: correspondences.{name}")

    def correspondence(
        self, wanted: LabelSpace, space: LabelSpace, own: CorrespondenceSpec | None, where: str
    ) -> Correspondence | None:
        """A center's own correspondence, else that of its space, else None: to be estimated."""
        if space == wanted:
            if own is not None:
                raise FedmtError(
                    f"{where} labels in the wanted space '{wanted.name}' and needs no correspondence; "
                    "remove it."
                )
            return Correspondence.identity(wanted)
        spec = own if own is not None else self.correspondences.get(space.name)
        if spec is None:
            return None
        if isinstance(spec, Path):
            return Correspondence.from_csv(spec, wanted, space)
        return Correspondence.from_mapping(wanted, space, spec, where)


def load_federation(
    wanted: str,
    reference: ReferenceSpec,
    centers: list[CenterSpec],
    tests: list[TestSpec],
    images: ImageSpec,
    vocabulary: Vocabulary,
) -> Federation:
    """A federation whose centers have sources of their own."""
    options = images.options()
    vocabulary.check()
    goal = vocabulary.space(wanted, f"{vocabulary.where}: wanted")
    problems: list[str] = []

    def tried(load: Callable[[], Center]) -> list[Center]:
        """The center in a list, or none and its problem noted: all problems are told at once."""
        try:
            return [load()]
        except FedmtError as error:
            problems.append(str(error))
            return []

    first = tried(lambda: _load_reference(reference, goal, options))
    others = [c for spec in centers for c in tried(partial(_load_center, spec, goal, options, vocabulary))]
    held = [
        t
        for number, test in enumerate(tests, 1)
        for t in tried(partial(_load_test, test, f"test {number}", wanted, options, vocabulary))
    ]
    if problems:
        raise FedmtError("\n".join(problems))
    return Federation(goal, first[0], tuple(others), (*held, *_derived_tests(held, others, goal)))


def _load_reference(spec: ReferenceSpec, goal: LabelSpace, options: ImageOptions) -> Center:
    images, labels = _read(spec, options, goal, f"center '{spec.name}'")
    return Center(spec.name, images, goal, labels)


def _load_center(spec: CenterSpec, goal: LabelSpace, options: ImageOptions, vocabulary: Vocabulary) -> Center:
    where = f"center '{spec.name}'"
    if spec.space is None:
        if spec.correspondence is not None:
            raise FedmtError(f"{where} has a correspondence but no space; name the space it labels in.")
        return Center(spec.name, _read(spec, options, None, where)[0])
    space = vocabulary.space(spec.space, where)
    matrix = vocabulary.correspondence(goal, space, spec.correspondence, where)
    images, labels = _read(spec, options, space, where)
    return Center(spec.name, images, space, labels, matrix)


def _load_test(
    spec: TestSpec, name: str, wanted: str, options: ImageOptions, vocabulary: Vocabulary
) -> Center:
    space = vocabulary.space(spec.space or wanted, name)
    images, labels = _read(spec, options, space, name, "test")
    return Center(name, images, space, labels)


def _derived_tests(tests: list[Center], centers: list[Center], goal: LabelSpace) -> list[Center]:
    """Tests in the other spaces, from the wanted labels, where a known partition tells them."""
    given = {t.space for t in tests}
    partitions = {
        c.space: c.correspondence
        for c in centers
        if c.correspondence is not None and c.correspondence.is_partition and c.space not in given
    }
    return [
        Center(f"{test.name} ({space.name})", test.images, space, matrix.map_labels(test.labels))
        for space, matrix in partitions.items()
        for test in tests
        if space is not None and space != goal and test.space == goal and test.labels is not None
    ]


def load_benchmark(
    spec: BenchmarkSpec, images: ImageSpec, vocabulary: Vocabulary, seed: int
) -> tuple[Federation, tuple[str, ...]]:
    """A labelled set split into a federation, and sentences about what the split could not do as asked.

    Labels in a space that the set does not have itself follow from the config's correspondence,
    which must then be a partition.
    """
    options = images.options()
    vocabulary.check()
    train = read_source(spec.data, options, vocabulary.spaces.get(spec.wanted), "benchmark", "train")
    if spec.wanted not in train.labels:
        own = f" The data itself has {listed(train.labels)}." if train.labels else ""
        raise FedmtError(
            f"benchmark: the data has no labels in the wanted space '{spec.wanted}'; list its classes under "
            f"[spaces].{own}"
        )
    # The same source has the test part; a split that was said of the training data is not said of it.
    test_spec = spec.test or spec.data.model_copy(update={"split": None})
    if spec.test is None and not _has_test_part(spec.data):
        raise FedmtError(
            f"benchmark: source '{spec.data.source}' has no test part of its own; set benchmark.test."
        )
    test = read_source(test_spec, options, train.spaces[spec.wanted], "benchmark.test", "test")
    if spec.wanted not in test.labels:
        raise FedmtError(f"benchmark.test: its images have no labels in '{spec.wanted}'.")
    goal, truth = train.spaces[spec.wanted], train.labels[spec.wanted]
    count = sum(spec.spaces.values())
    split = _split(spec, truth, goal, count, seed)
    reference = Center("reference", train.images[split.reference], goal, truth[split.reference])
    tests = [Center("test", test.images, goal, test.labels[spec.wanted])]
    centers: list[Center] = []
    parts = iter(split.centers)
    width = len(str(count))
    for name, number in spec.spaces.items():
        space, matrix, labels, test_labels = _other_space(name, goal, train, test, spec.wanted, vocabulary)
        if space != goal:
            tests.append(Center(f"test ({name})", test.images, space, test_labels))
        for _ in range(number):
            part = next(parts)
            centers.append(
                Center(
                    f"center-{len(centers) + 1:0{width}d}",
                    train.images[part],
                    space,
                    labels[part],
                    matrix,
                    truth[part],
                )
            )
    return Federation(goal, reference, tuple(centers), tuple(tests)), split.notes


def read_source(
    spec: SourceSpec, options: ImageOptions, space: LabelSpace | None, where: str, split: str = ""
) -> ImageSet:
    """Reads a source; `split` is the part to read where the spec does not say."""
    part: Literal["train", "test"] = spec.split or ("test" if split == "test" else "train")
    if spec.source == "fashion_mnist":
        return read_fashion_mnist(part, options)
    if spec.path is None:
        raise FedmtError(f"{where}: source '{spec.source}' needs a path.")
    if spec.source == "cifar100":
        return read_cifar100(spec.path, part, options)
    if spec.source == "folder":
        return read_folder(spec.path, options, space, labelled=space is not None)
    if spec.source == "npz":
        return read_npz(spec.path, options, space, labelled=space is not None)
    if spec.source == "manifest":
        column = spec.label_column if space is not None else None
        return read_manifest(
            spec.path,
            options,
            space,
            image_column=spec.image_column,
            label_column=column,
            root=spec.root,
        )
    if space is None and spec.path.is_dir():
        raise FedmtError(f"{where}: an IDX folder has labels; name their space.")
    if spec.path.is_dir():
        assert space is not None
        return read_mnist_folder(spec.path, part, options, space)
    return read_idx(spec.path, spec.labels, options, space)


def _read(
    spec: SourceSpec, options: ImageOptions, space: LabelSpace | None, where: str, split: str = ""
) -> tuple[Tensor, Tensor | None]:
    """Images and, where a space is named, labels in it."""
    try:
        found = read_source(spec, options, space, where, split)
    except FedmtError as error:
        # Readers know the file, not whose it is.
        raise error if str(error).startswith(where) else FedmtError(f"{where}: {error}") from None
    if space is None:
        return found.images, None
    if space.name not in found.labels:
        has = listed(found.labels) if found.labels else "none"
        raise FedmtError(f"{where}: no labels in space '{space.name}' in its data; it has {has}.")
    if found.spaces[space.name] != space:
        raise FedmtError(
            f"{where}: space '{space.name}' in its data has other classes than in [spaces]: "
            f"{listed(found.spaces[space.name])}."
        )
    return found.images, found.labels[space.name]


def _has_test_part(spec: SourceSpec) -> bool:
    """Whether one source holds training and test images: an IDX file does not, its folder does."""
    if spec.source == "idx":
        return spec.path is not None and spec.path.is_dir()
    return spec.source in ("cifar100", "fashion_mnist")


def _split(spec: BenchmarkSpec, truth: Tensor, goal: LabelSpace, count: int, seed: int) -> Split:
    if spec.split == "iid":
        return iid_split(truth, len(goal), spec.per_class, count, spec.samples, seed, goal.classes)
    if spec.samples is None:
        raise FedmtError("benchmark: the non-IID split needs `samples`, the number at each center.")
    return non_iid_split(
        truth, len(goal), spec.per_class, count, spec.samples, spec.gamma, seed, goal.classes
    )


def _other_space(
    name: str, goal: LabelSpace, train: ImageSet, test: ImageSet, wanted: str, vocabulary: Vocabulary
) -> tuple[LabelSpace, Correspondence | None, Tensor, Tensor]:
    """A space of the benchmark: itself, its correspondence, and training and test labels in it."""
    if name in train.labels:
        space, matrix = train.spaces[name], _co_occurrence(train, wanted, name)
        if name in test.labels:
            return space, matrix, train.labels[name], test.labels[name]
        if not matrix.is_partition:
            raise FedmtError(f"benchmark.test: its images have no labels in '{name}'.")
        return space, matrix, train.labels[name], matrix.map_labels(test.labels[wanted])
    space = vocabulary.space(name, "benchmark.spaces")
    known = vocabulary.correspondence(goal, space, None, f"correspondences.{name}")
    if known is None:
        raise FedmtError(
            f"benchmark: the data has no labels in '{name}'; give correspondences.{name} to derive them."
        )
    return space, known, known.map_labels(train.labels[wanted]), known.map_labels(test.labels[wanted])


def _co_occurrence(data: ImageSet, wanted: str, name: str) -> Correspondence:
    """M from a set that has both labels: the paper's empirical matrix, over all of its samples."""
    fine, coarse = data.spaces[wanted], data.spaces[name]
    pairs = data.labels[name] * len(fine) + data.labels[wanted]
    counts = torch.bincount(pairs, minlength=len(coarse) * len(fine)).view(len(coarse), len(fine)).double()
    totals = counts.sum(0)
    if (totals == 0).any():
        missing = [c for c, n in zip(fine, totals.tolist(), strict=True) if n == 0]
        raise FedmtError(f"benchmark: the data has no sample of {listed(missing)}.")
    return Correspondence(counts / totals, fine, coarse, "benchmark")
