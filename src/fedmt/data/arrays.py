"""A federation of arrays in memory: `Federation.from_arrays` and `CenterData`.

The user's data, of whatever type, is first separated into samples and labels (taking.py). The input then
converts the samples to its stored form, and the labels become positions in their space.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.data.center import Center, Federation
from fedmt.data.frames import Reader, by_names, frame_reader, is_frame, left_out
from fedmt.data.loading import complete
from fedmt.data.taking import grouped, guessed, labels_as_positions, taken
from fedmt.inputs import INPUTS, Input
from fedmt.inputs.arrays import as_tensor

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class CenterData:
    """The samples of one center of `Federation.from_arrays`.

    x: its samples, or a `torch.utils.data.Dataset` of (x, y), or a pandas DataFrame. y: their labels, as
        class names or as positions in the label space, or the name of the frame's column. None if it has no
        labels.
    space: the label space; by default, the wanted one. correspondence: M, if it is known. It is a dictionary
        as in a config, `{wanted class: class}` or `{wanted class: {class: probability}}`; a matrix [J, K]; a
        DataFrame with these classes as its index and columns; a `Correspondence`; or a CSV file. Without it,
        M is estimated.
    groups: what each sample belongs to, such as its patient: a name or number for each, or the name of the
        frame's column. The intervals of a test then count patients (docs/guides/patients.md).

    >>> import numpy as np
    >>> CenterData(np.zeros((4, 8, 8)), ["malignant", "benign"] * 2, space="triage",
    ...            correspondence={"melanoma": "malignant", "nevus": "benign"})
    CenterData(x=ndarray (4, 8, 8), labeled, space='triage')
    """

    x: Any
    y: Any = None
    space: str | LabelSpace | None = None
    correspondence: Any = None
    groups: Any = None

    def __repr__(self) -> str:
        shape = f" {tuple(self.x.shape)}" if hasattr(self.x, "shape") else ""
        labeled = "" if self.y is None else ", labeled"
        space = "" if self.space is None else f", space={getattr(self.space, 'name', self.space)!r}"
        return f"CenterData(x={type(self.x).__name__}{shape}{labeled}{space})"


def from_arrays(
    wanted: Sequence[str] | LabelSpace | str,
    reference: Any,
    centers: Mapping[str, Any],
    spaces: Mapping[str, Sequence[str]] | None = None,
    test: Any = None,
    correspondences: Mapping[str, Any] | None = None,
    input: str | type[Input] | None = None,
    reference_name: str = "reference",
    label_column: str = "label",
) -> Federation:
    """Documented at `Federation.from_arrays`."""
    vocabulary = _vocabulary(wanted, spaces or {}, correspondences or {})
    if not isinstance(centers, Mapping) or not centers:
        raise FedmtError(
            "centers: expected a dictionary of at least one center, by name, such as "
            f'{{"Berlin": fedmt.CenterData(x, y, space="triage")}}; got {_shown(centers)}.'
        )
    problems: list[str] = []

    def tried(make: Callable[..., T], *arguments: Any) -> list[T]:
        """Collects a result in a list, or notes its problem, so that all problems are reported at once."""
        try:
            return [make(*arguments)]
        except FedmtError as error:
            problems.append(str(error))
            return []

    given = [(reference_name, "reference", reference), *((n, "center", c) for n, c in centers.items())]
    given += [(name, "test", data) for name, data in _tests(test).items()]
    opened = [p for one in given for p in tried(_opened, *one, vocabulary, label_column)]
    kinds = tried(_kind, input, opened)
    readers = [r for kind in kinds for r in tried(_reader, kind, opened)]
    made = [(p, c) for p in opened for reader in readers for c in tried(_center, p, reader, vocabulary)]
    first = next((c for p, c in made if p.role == "reference"), None)
    if first is not None:
        problems += [_mismatch(p.where, c, first) for p, c in made if not c.input.fits(first.input)]
    if problems or first is None:
        raise FedmtError("\n".join(dict.fromkeys(problems)))
    frames = [p.x for p in opened if p.role != "test" and is_frame(p.x)]
    notes = list(left_out(first.input, frames)) if frames else []
    others, tests = ([c for p, c in made if p.role == role] for role in ("center", "test"))
    federation = complete(vocabulary.goal, first, others, tests, (), notes)
    return dataclasses.replace(federation, notes=tuple(notes))


@dataclass(frozen=True)
class _Vocabulary:
    """The wanted space, all spaces by name, and the correspondences that hold for whole spaces."""

    goal: LabelSpace
    spaces: Mapping[str, LabelSpace]
    correspondences: Mapping[str, Any]

    def space(self, given: str | LabelSpace, where: str) -> LabelSpace:
        name = given.name if isinstance(given, LabelSpace) else given
        known = self.spaces.get(name) if isinstance(name, str) else None
        if known is None and isinstance(given, LabelSpace):
            return given
        if known is None:
            raise FedmtError(
                f"{where}: label space {name!r} is not in `spaces`.{nearest(str(name), self.spaces)} Known: "
                f"{listed(self.spaces)}."
            )
        if isinstance(given, LabelSpace) and given != known:
            raise FedmtError(
                f"{where}: its label space '{name}' has the classes {listed(given)}, but elsewhere it has "
                f"{listed(known)}. Give one of the two another name."
            )
        return known


def _vocabulary(
    wanted: Sequence[str] | LabelSpace | str,
    spaces: Mapping[str, Sequence[str]],
    correspondences: Mapping[str, Any],
) -> _Vocabulary:
    others = {n: c if isinstance(c, LabelSpace) else LabelSpace(n, c) for n, c in spaces.items()}
    if isinstance(wanted, LabelSpace):
        goal = wanted
    elif isinstance(wanted, str):
        if wanted not in others:
            raise FedmtError(
                f"wanted: label space '{wanted}' is not in `spaces`.{nearest(wanted, others)} Give the "
                "classes themselves, as a list, or a name that `spaces` has."
            )
        goal = others[wanted]
    else:
        goal = LabelSpace("wanted", wanted)
    if others.get(goal.name, goal) != goal:
        raise FedmtError(
            f"spaces: '{goal.name}' is the wanted space, but it has other classes there. Rename one of the "
            "two."
        )
    found = _Vocabulary(goal, {goal.name: goal, **others}, correspondences)
    for name in correspondences:
        if found.space(name, f"correspondences: '{name}'") == goal:
            raise FedmtError(f"correspondences: '{name}' is the wanted space, which needs none.")
    return found


@dataclass(frozen=True, eq=False)
class _Opened:
    """A center or test, separated into its parts. x: its samples, of any kind. y: None if it has no labels.
    group_column: the column that was taken out of a frame, if it names the groups."""

    name: str
    role: str
    where: str
    x: Any
    y: Any
    space: LabelSpace | None
    correspondence: Any
    groups: Tensor | None
    group_column: str | None


def _opened(name: object, role: str, given: Any, vocabulary: _Vocabulary, label_column: str) -> _Opened:
    where = f"{'test' if role == 'test' else 'center'} '{name}'"
    if not isinstance(name, str) or not name:
        raise FedmtError(f"{where}: its name is {name!r}; expected text.")
    data = _data(given, where)
    x, groups = grouped(data.x, data.groups, where)
    together = groups, data.groups if isinstance(data.groups, str) else None
    x, y = taken(x, data.y, where, label_column)
    if y is None and role != "center":
        what = "the reference center" if role == "reference" else "a test"
        raise FedmtError(f"{where}: {what} needs labels; give (x, y), or a Dataset of (x, y).")
    if y is None:
        if data.space is not None or data.correspondence is not None:
            has = "a label space" if data.space is not None else "a correspondence"
            raise FedmtError(f"{where} has {has} but no labels. Give y, or leave out the rest.")
        return _Opened(name, role, where, x, None, None, None, *together)
    space = vocabulary.goal if data.space is None else vocabulary.space(data.space, where)
    if role == "reference" and space != vocabulary.goal:
        raise FedmtError(
            f"{where}: the reference center must label in the wanted space '{vocabulary.goal.name}', not in "
            f"'{space.name}'."
        )
    own = data.correspondence
    if own is not None and (role != "center" or space == vocabulary.goal):
        why = f"labels in the wanted space '{space.name}'" if role == "center" else f"is the {role}"
        raise FedmtError(f"{where} {why} and needs no correspondence; remove it.")
    if own is None and role == "center":
        own = vocabulary.correspondences.get(space.name)
    return _Opened(name, role, where, x, y, space, own, *together)


def _data(given: Any, where: str) -> CenterData:
    """Converts any accepted form to `CenterData`."""
    if isinstance(given, CenterData):
        return given
    if isinstance(given, tuple):
        if not 1 <= len(given) <= 3:
            raise FedmtError(
                f"{where}: got a tuple of length {len(given)}; expected (x, y, space), (x, y) or (x,)."
            )
        return CenterData(*given)
    return CenterData(given)


def _tests(test: Any) -> dict[Any, Any]:
    if test is None:
        return {}
    return dict(test) if isinstance(test, Mapping) else {"test 1": test}


def _kind(input: str | type[Input] | None, opened: Sequence[_Opened]) -> type[Input]:
    """What the samples are: as the user states, or inferred from the shape of the first center's samples."""
    if isinstance(input, type) and issubclass(input, Input):
        return input
    if input is not None:
        return INPUTS.find(input, "input")
    return guessed(opened[0].x, opened[0].where) if opened else INPUTS["images"]


def _reader(kind: type[Input], opened: Sequence[_Opened]) -> Reader:
    """How samples are converted to the stored form of `kind`."""
    frames = [p for p in opened if is_frame(p.x)]
    if not frames:
        return lambda x, where: (kind.stored(x, where), kind)
    others = [p.where for p in opened if not is_frame(p.x)]
    if others:
        raise FedmtError(
            f"{others[0]}: this is an array, but {frames[0].where} has a data frame. Give the same kind of "
            "data everywhere."
        )
    named = {p.group_column for p in frames if p.group_column is not None}
    return frame_reader(kind, {p.where: p.x for p in frames if p.role != "test"}, named)


def _center(place: _Opened, reader: Reader, vocabulary: _Vocabulary) -> Center:
    values, input = reader(place.x, place.where)
    groups = place.groups
    if groups is not None and len(groups) != len(values):
        raise FedmtError(f"{place.where}: {len(values):,} {input.word}s but {len(groups):,} groups.")
    if place.space is None:
        return Center(place.name, values, input=input, groups=groups)
    labels = labels_as_positions(place.y, place.space, len(values), place.where, input.word)
    known = _correspondence(place, vocabulary.goal)
    return Center(place.name, values, place.space, labels, known, input=input, groups=groups)


def _correspondence(place: _Opened, goal: LabelSpace) -> Correspondence | None:
    given, space = place.correspondence, place.space
    assert space is not None
    if given is None or place.role != "center" or space == goal:
        return None
    if isinstance(given, Correspondence):
        if (given.fine, given.coarse) != (goal, space):
            raise FedmtError(
                f"{place.where}: its correspondence is from '{given.fine.name}' to '{given.coarse.name}', "
                f"expected from '{goal.name}' to '{space.name}', with the same classes."
            )
        return given
    if is_frame(given):
        given = by_names(given)
    if isinstance(given, Mapping):
        return Correspondence.from_mapping(goal, space, given, place.where)
    if isinstance(given, str | Path):
        return Correspondence.from_csv(given, goal, space)
    return Correspondence(as_tensor(given, f"{place.where}: correspondence"), goal, space, place.where)


def _mismatch(where: str, center: Center, reference: Center) -> str:
    if center.input.shape == reference.input.shape:
        return f"{where} has {reference.input.mismatch(center.input)}."
    return (
        f"{where}: {center.input.word}s of shape {center.input.shape}, but the reference center has "
        f"{reference.input.shape}; convert all {center.input.word}s to one shape first."
    )


def _shown(given: object) -> str:
    return "none" if isinstance(given, Mapping) else f"an object of type {type(given).__name__}"
