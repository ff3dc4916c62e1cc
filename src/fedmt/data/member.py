"""Members: who takes part in a federation and labels in which space, without any data.

A `Member` is all that a coordinator, a saved model or a report knows about a center; `Center` (center.py)
adds samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import Correspondence, LabelSpace


@dataclass(frozen=True, eq=False)
class Member:
    """space: the space it labels in. None if it has no labels.

    correspondence: between `space` and the wanted space; None if it is unknown.
    size: the number of samples; None if it is unknown.
    """

    name: str
    space: LabelSpace | None = None
    correspondence: Correspondence | None = None
    size: int | None = None

    @property
    def labels_as_wanted(self) -> bool:
        """Whether it labels in the wanted space, so that its correspondence is the identity."""
        return self.correspondence is not None and self.correspondence.coarse == self.correspondence.fine

    def __post_init__(self) -> None:
        known, where = self.correspondence, f"Center '{self.name}'"
        if known is not None and self.space is None:
            raise FedmtError(f"{where} has a correspondence but no labels; remove one or add the other.")
        if known is not None and self.space is not None and known.coarse != self.space:
            raise FedmtError(
                f"{where} labels in '{self.space.name}', but its correspondence is for '{known.coarse.name}'."
            )


@dataclass(frozen=True, eq=False)
class Roster:
    """The reference center and the other members, in the order of their names: a federation without its
    data."""

    wanted: LabelSpace
    reference: Member
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        # One fixed order, so that neither the order in the config nor the order of arrival changes a sum.
        ordered = (with_identity(m, self.wanted) for m in sorted(self.members, key=lambda m: m.name))
        object.__setattr__(self, "members", tuple(ordered))
        check_names([self.reference, *self.members])
        for member in self.members:
            known = member.correspondence
            if known is not None and known.fine != self.wanted:
                raise FedmtError(
                    f"Center '{member.name}': its correspondence leads to '{known.fine.name}', not to the "
                    f"wanted space '{self.wanted.name}'."
                )

    @property
    def spaces(self) -> tuple[LabelSpace, ...]:
        """Every label space in use, the wanted one first."""
        found = [self.wanted]
        for member in self.members:
            if member.space is not None and member.space not in found:
                found.append(member.space)
        return tuple(found)


M = TypeVar("M", bound=Member)


def with_identity(member: M, wanted: LabelSpace) -> M:
    """A member that labels in the wanted space has the identity as its correspondence."""
    if member.space == wanted and member.correspondence is None:
        return replace(member, correspondence=Correspondence.identity(wanted))
    return member


def check_names(members: Iterable[Member]) -> None:
    names: Sequence[str] = [m.name for m in members]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise FedmtError(f"Center names must differ: {listed(twice)} occurs more than once.")
