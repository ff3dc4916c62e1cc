"""From what a config says of the data to a `Federation`: a reference center, centers and tests, each with
a source of its own. The other way to say it, one labelled set that is split, is in benchmark.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.data.imageset import ImageOptions
from fedmt.data.sources import read_source
from fedmt.data.specs import (
    CenterSpec,
    CorrespondenceSpec,
    ImageSpec,
    ReferenceSpec,
    SourceSpec,
    TestSpec,
)
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

    def check(self, wanted: str) -> None:
        """A correspondence for a space that nobody knows would be ignored in silence."""
        for name in self.correspondences:
            where = f"{self.where}: correspondences.{name}"
            self.space(name, where)
            if name == wanted:
                others = listed(s for s in self.spaces if s != wanted)
                raise FedmtError(
                    f"{where}: '{name}' is the wanted space, which needs none; name the other one: {others}."
                )

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
        if own is None:
            where = f"{self.where}: correspondences.{space.name}"
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
    at_hand: bool = True,
) -> tuple[Federation, tuple[str, ...]]:
    """A federation whose centers have sources of their own, and what these say of themselves.

    at_hand: whether the centers' data are here; else the centers are known by name and space (`outline`).
    """
    options = images.options()
    vocabulary.check(wanted)
    goal = vocabulary.space(wanted, f"{vocabulary.where}: wanted")
    problems: list[str] = []
    notes: list[str] = []

    def tried(load: Callable[[], Center]) -> list[Center]:
        """The center in a list, or none and its problem noted: all problems are told at once."""
        try:
            return [load()]
        except FedmtError as error:
            problems.append(str(error))
            return []

    first = tried(lambda: _load_reference(reference, goal, options, notes))
    if at_hand:
        others = [
            c
            for spec in centers
            for c in tried(partial(_load_center, spec, goal, options, vocabulary, notes))
        ]
    else:
        others = [c for spec in centers for c in tried(partial(_outlined, spec, goal, vocabulary, first))]
    held = [
        t
        for number, test in enumerate(tests, 1)
        for t in tried(partial(_load_test, test, f"test {number}", wanted, options, vocabulary, notes))
    ]
    if problems:
        raise FedmtError("\n".join(dict.fromkeys(problems)))  # centers may share a correspondence
    reference_labels = first[0].labels
    assert reference_labels is not None
    absent = [c for k, c in enumerate(goal) if not bool((reference_labels == k).any())]
    if absent:
        notes.append(
            f"center '{first[0].name}': no image of {listed(absent, 5)}: the reference center should show "
            "every wanted class, or the model hardly learns it."
        )
    spaces = {goal, *(c.space for c in others)}
    notes += [
        f"{test.name}: no center labels in space '{test.space.name}', so no model answers in it: left out."
        for test in held
        if test.space is not None and test.space not in spaces
    ]
    derived = _derived_tests(held, others, goal, notes)
    federation = Federation(goal, first[0], tuple(others), (*held, *derived))
    return federation, tuple(notes)


def load_center(
    spec: CenterSpec, wanted: LabelSpace, options: ImageOptions, vocabulary: Vocabulary
) -> tuple[Center, tuple[str, ...]]:
    """One center alone, as its own machine sees it, and what its data say of themselves."""
    notes: list[str] = []
    return _load_center(spec, wanted, options, vocabulary, notes), tuple(notes)


def _load_reference(spec: ReferenceSpec, goal: LabelSpace, options: ImageOptions, notes: list[str]) -> Center:
    images, labels = _read(spec, options, goal, f"center '{spec.name}'", notes)
    return Center(spec.name, images, goal, labels)


def _load_center(
    spec: CenterSpec, goal: LabelSpace, options: ImageOptions, vocabulary: Vocabulary, notes: list[str]
) -> Center:
    where = f"center '{spec.name}'"
    if spec.space is None:
        if spec.correspondence is not None:
            raise FedmtError(f"{where} has a correspondence but no space; name the space it labels in.")
        return Center(spec.name, _read(spec, options, None, where, notes)[0])
    space = vocabulary.space(spec.space, where)
    matrix = vocabulary.correspondence(goal, space, spec.correspondence, where)
    images, labels = _read(spec, options, space, where, notes)
    return Center(spec.name, images, space, labels, matrix)


def _outlined(spec: CenterSpec, goal: LabelSpace, vocabulary: Vocabulary, reference: list[Center]) -> Center:
    """A center whose data are elsewhere."""
    where = f"center '{spec.name}'"
    shape = reference[0].images.shape[1:] if reference else (1, 1, 1)
    if spec.space is None:
        return outline(spec.name, shape, None, None)
    space = vocabulary.space(spec.space, where)
    matrix = vocabulary.correspondence(goal, space, spec.correspondence, where)
    return outline(spec.name, shape, space, matrix)


def outline(
    name: str, shape: Sequence[int], space: LabelSpace | None, matrix: Correspondence | None
) -> Center:
    """What a coordinating site knows of a center: its name, its label space, perhaps its correspondence.

    One blank image stands for those that never leave the center.
    """
    # A label that may occur: one that no wanted class corresponds to would be refused.
    label = 0 if matrix is None else int((matrix.matrix.sum(1) > 0).nonzero()[0])
    labels = None if space is None else torch.tensor([label])
    return Center(name, torch.zeros(1, *shape, dtype=torch.uint8), space, labels, matrix, remote=True)


def _load_test(
    spec: TestSpec,
    name: str,
    wanted: str,
    options: ImageOptions,
    vocabulary: Vocabulary,
    notes: list[str],
) -> Center:
    space = vocabulary.space(spec.space or wanted, name)
    images, labels = _read(spec, options, space, name, notes, "test")
    return Center(name, images, space, labels)


def _derived_tests(
    tests: list[Center], centers: list[Center], goal: LabelSpace, notes: list[str]
) -> list[Center]:
    """Tests in the other spaces, from the wanted labels, where a known partition tells them."""
    wanted = [t for t in tests if t.space == goal and t.labels is not None]
    known: dict[LabelSpace, list[Correspondence]] = {}
    for center in centers:
        if center.space is not None and center.correspondence is not None:
            known.setdefault(center.space, []).append(center.correspondence)
    found = []
    for space, matrices in known.items():
        if not wanted or space == goal or any(t.space == space for t in tests):
            continue
        first = matrices[0]
        if any(m != first for m in matrices):
            notes.append(
                f"space '{space.name}': its centers' correspondences differ, so the wanted labels of the "
                f"test do not tell those in it; to test in '{space.name}', add [[tests]] with labels in it."
            )
        elif first.is_partition:
            for test in wanted:
                assert test.labels is not None
                labels = first.map_labels(test.labels)
                found.append(Center(f"{test.name} ({space.name})", test.images, space, labels))
    return found


def _read(
    spec: SourceSpec,
    options: ImageOptions,
    space: LabelSpace | None,
    where: str,
    notes: list[str],
    split: str = "",
) -> tuple[Tensor, Tensor | None]:
    """Images and, where a space is named, labels in it; what the source says goes to `notes`."""
    try:
        found = read_source(spec, options, space, where, split)
    except FedmtError as error:
        # Readers know the file, not whose it is.
        raise error if str(error).startswith(where) else FedmtError(f"{where}: {error}") from None
    notes += [f"{where}: {note}" for note in found.notes]
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
