"""Loads the data that a config describes into a `Federation`: a reference center, centers and tests, each
with its own source. The alternative, one labeled set that is split, is in benchmark.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.core.section import Section
from fedmt.data.center import Center, Federation
from fedmt.data.member import Member
from fedmt.data.sources import read_source
from fedmt.data.specs import (
    CenterSpec,
    CorrespondenceSpec,
    ReferenceSpec,
    SourceSpec,
    TestSpec,
)

M = TypeVar("M", bound=Member)


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
        """Rejects a correspondence for an unknown space, which would otherwise be ignored silently."""
        for name in self.correspondences:
            where = f"{self.where}: correspondences.{name}"
            self.space(name, where)
            if name == wanted:
                others = listed(s for s in self.spaces if s != wanted)
                raise FedmtError(
                    f"{where}: '{name}' is the wanted space, which needs no correspondence. Name another "
                    f"space: {others}."
                )

    def correspondence(
        self, wanted: LabelSpace, space: LabelSpace, own: CorrespondenceSpec | None, where: str
    ) -> Correspondence | None:
        """A center's own correspondence, else that of its space, else None, which means that it is
        estimated."""
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
    options: Section,
    vocabulary: Vocabulary,
    at_hand: bool = True,
) -> tuple[Federation, tuple[str, ...]]:
    """A federation whose centers have their own sources, and the notes of these sources.

    at_hand: whether the centers' data are on this machine. Otherwise the centers are members without samples.
    """
    vocabulary.check(wanted)
    goal = vocabulary.space(wanted, f"{vocabulary.where}: wanted")
    problems: list[str] = []
    notes: list[str] = []

    def tried(load: Callable[[], M]) -> list[M]:
        """Collects a result in a list, or notes its problem, so that all problems are reported at once."""
        try:
            return [load()]
        except FedmtError as error:
            problems.append(str(error))
            return []

    def load(spec: CenterSpec) -> Center:
        return _read(spec, _member(spec, goal, vocabulary), options, notes)

    first = tried(lambda: _read(reference, Member(reference.name, goal), options, notes))
    here = [c for spec in centers if at_hand for c in tried(partial(load, spec))]
    elsewhere = [
        m for spec in centers if not at_hand for m in tried(partial(_member, spec, goal, vocabulary))
    ]
    held = [
        t
        for number, test in enumerate(tests, 1)
        for t in tried(
            partial(_load_test, test, test.name or f"test {number}", wanted, options, vocabulary, notes)
        )
    ]
    if problems:
        raise FedmtError("\n".join(dict.fromkeys(problems)))  # centers may share a correspondence
    federation = complete(goal, first[0], here, held, elsewhere, notes)
    return federation, tuple(notes)


def complete(
    goal: LabelSpace,
    reference: Center,
    centers: Sequence[Center],
    tests: Sequence[Center],
    elsewhere: Sequence[Member],
    notes: list[str],
) -> Federation:
    """The federation of these centers, with the tests that can be derived. Anything unusual is added to
    `notes`.

    Data in files and data in memory both pass through here, so that the same data give the same federation.
    """
    assert reference.labels is not None
    labels = reference.labels
    absent = [c for k, c in enumerate(goal) if not bool((labels == k).any())]
    if absent:
        notes.append(
            f"center '{reference.name}': no {reference.input.word} of {listed(absent, 5)}. The reference "
            "center should have samples of every wanted class, because the model hardly learns a class "
            "without them."
        )
    others: list[Member] = [*centers, *elsewhere]
    spaces = {goal, *(m.space for m in others)}
    notes += [
        f"{test.name}: no center labels in space '{test.space.name}', so no model predicts in it, and the "
        "test is left out."
        for test in tests
        if test.space is not None and test.space not in spaces
    ]
    derived = derived_tests(tests, others, goal, notes)
    return Federation(goal, reference, tuple(centers), (*tests, *derived), elsewhere=tuple(elsewhere))


def load_center(
    spec: CenterSpec, wanted: LabelSpace, options: Section, vocabulary: Vocabulary
) -> tuple[Center, tuple[str, ...]]:
    """One center alone, as its own machine sees it, and the notes of its source."""
    notes: list[str] = []
    return _read(spec, _member(spec, wanted, vocabulary), options, notes), tuple(notes)


def _member(spec: CenterSpec, goal: LabelSpace, vocabulary: Vocabulary) -> Member:
    """A center's member data, from the config alone."""
    where = f"center '{spec.name}'"
    if spec.space is None:
        if spec.correspondence is not None:
            raise FedmtError(f"{where} has a correspondence but no space; name the space it labels in.")
        return Member(spec.name)
    space = vocabulary.space(spec.space, where)
    return Member(spec.name, space, vocabulary.correspondence(goal, space, spec.correspondence, where))


def _load_test(
    spec: TestSpec,
    name: str,
    wanted: str,
    options: Section,
    vocabulary: Vocabulary,
    notes: list[str],
) -> Center:
    space = vocabulary.space(spec.space or wanted, name)
    return _read(spec, Member(name, space), options, notes, "test")


def derived_tests(
    tests: Sequence[Center], members: Sequence[Member], goal: LabelSpace, notes: list[str]
) -> list[Center]:
    """Tests in the other spaces, derived from the wanted labels if a known partition determines them."""
    wanted = [t for t in tests if t.space == goal and t.labels is not None]
    known: dict[LabelSpace, list[Correspondence]] = {}
    for member in members:
        if member.space is not None and member.correspondence is not None:
            known.setdefault(member.space, []).append(member.correspondence)
    found = []
    for space, matrices in known.items():
        if not wanted or space == goal or any(t.space == space for t in tests):
            continue
        first = matrices[0]
        if any(m != first for m in matrices):
            notes.append(
                f"space '{space.name}': its centers' correspondences differ, so the wanted labels of the "
                f"test do not determine the labels in this space. To test in '{space.name}', add [[tests]] "
                "with labels in it."
            )
        elif first.is_partition:
            for test in wanted:
                assert test.labels is not None
                labels = first.map_labels(test.labels)
                found.append(replace(test, name=f"{test.name} ({space.name})", space=space, labels=labels))
    return found


def _read(spec: SourceSpec, member: Member, options: Section, notes: list[str], split: str = "") -> Center:
    """A member's samples and, if it has a space, its labels. The notes of the source are added to `notes`."""
    space = member.space
    where = member.name if split == "test" else f"center '{member.name}'"
    try:
        found = read_source(spec, options, space, where, split)
    except FedmtError as error:
        # Readers know the file, but not which center it belongs to.
        raise error if str(error).startswith(where) else FedmtError(f"{where}: {error}") from None
    notes += [f"{where}: {note}" for note in found.notes]
    if space is None:
        return Center(member.name, found.samples, input=found.input, groups=found.groups)
    if space.name not in found.labels:
        has = listed(found.labels) if found.labels else "none"
        raise FedmtError(f"{where}: no labels in space '{space.name}' in its data; it has {has}.")
    if found.spaces[space.name] != space:
        raise FedmtError(
            f"{where}: space '{space.name}' has different classes in its data than in [spaces]: "
            f"{listed(found.spaces[space.name])}."
        )
    labels = found.labels[space.name]
    return Center(
        member.name,
        found.samples,
        space,
        labels,
        member.correspondence,
        input=found.input,
        snippets=found.snippets if split == "test" else None,
        groups=found.groups,
        sites=found.sites if split == "test" else None,
    )
