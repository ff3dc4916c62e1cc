"""Where each center's correspondence M came from, in words: what happened, not what the config requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmt.core.errors import listed
from fedmt.data.member import Member

NAMED = 3
"""Number of centers that the summary names in one group. A larger group is counted."""


def origin(method: Mapping[str, Any], wanted: str, member: Member, estimated: bool) -> str | None:
    """What one center trained with, as a phrase that continues after "M"; None if the method uses no M.

    method: its name and options. wanted: the name of that space. estimated: whether its M-hat is known here.
    A center of unknown size is on another machine, where it may keep both M and M-hat to itself.
    """
    if "correspondence" not in method:
        return None
    if member.space is None:
        return "not needed (no labels)"
    if member.space.name == wanted:
        return "not needed (wanted labels)"
    if estimated:
        return _estimated(method)
    if member.size is None:
        return "known only at the center"
    given = member.correspondence is not None and method["correspondence"] == "given"
    return "given" if given else "not estimated so far"


def plan(method: Mapping[str, Any]) -> str:
    """What the config requests. This is all that can be said before it is known which centers have an M."""
    kind, estimated = method.get("correspondence"), _estimated(method)
    return "" if kind is None else f"given where known, else {estimated}" if kind == "given" else estimated


def in_short(origins: Mapping[str, str]) -> str:
    """One phrase for all centers, by their names.

    >>> in_short({"Bonn": "given", "Kiel": "given"})
    'given'
    >>> in_short({"Bonn": "given", "Kiel": "learned", "Ulm": "given"})
    "given at 'Bonn', 'Ulm'; learned at 'Kiel'"
    """
    groups: dict[str, list[str]] = {}
    for name, said in origins.items():
        groups.setdefault(said, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(
        f"{said} at {listed(names) if len(names) <= NAMED else f'{len(names)} centers'}"
        for said, names in groups.items()
    )


def _estimated(method: Mapping[str, Any]) -> str:
    estimator = method.get("estimator")
    if estimator == "learnable":
        return "learned"
    return f"estimated by {estimator}" if estimator else "estimated"
