"""Proposes a federation from what was found: label spaces, reference center and correspondences. All are
guesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from fedmt.commands.init.found import Found, label_columns
from fedmt.core.errors import FedmtError, listed, nearest

SIMILAR = 0.75
"""Names that are at least this similar (of 1) are proposed as the same class."""

NEGATIONS = {"non", "not", "no", "without", "un", "anti"}

Why = Literal["counted", "equal", "similar"]


@dataclass(frozen=True)
class Entry:
    """A wanted class expressed in a center's space: shares of its classes, and how they were found."""

    shares: dict[str, float]
    why: Why


@dataclass(frozen=True)
class Proposal:
    """entries: by wanted class; None if nothing was found. source: the center whose labels were counted.

    problem: why it cannot be used as it is. The correspondence is then estimated.
    """

    entries: dict[str, Entry | None]
    source: str = ""
    problem: str = ""

    @property
    def certain(self) -> bool:
        """Whether it is complete and based only on counts and equal names."""
        return not self.problem and all(e is not None and e.why != "similar" for e in self.entries.values())

    @property
    def usable(self) -> bool:
        return not self.problem and all(e is not None for e in self.entries.values())


@dataclass(frozen=True)
class Member:
    """A center or test with the column and the space of its labels. Both are None if it has no labels."""

    found: Found
    column: str | None = None
    space: str | None = None


@dataclass(frozen=True)
class Plan:
    """spaces: name to classes, the wanted one first. reason: why this center is the reference center."""

    spaces: dict[str, list[str]]
    reference: Member
    centers: list[Member]
    tests: list[Member]
    correspondences: dict[str, Proposal]
    reason: str

    @property
    def wanted(self) -> str:
        return next(iter(self.spaces))

    @property
    def is_table(self) -> bool:
        """Whether the samples are the rows of tables."""
        return self.reference.found.source == "table"

    @property
    def word(self) -> str:
        """What the samples are called."""
        return self.reference.found.word


def propose(
    centers: Sequence[Found], tests: Sequence[Found], reference: str | None = None, column: str | None = None
) -> Plan:
    """reference: the center that has the wanted labels. column: the column of its table that holds them."""
    centers, tests = _grouped_alike(centers, tests)
    first, reason = _reference(centers, tests, reference)
    own = label_columns(first)
    if column is not None and column not in own:
        raise FedmtError(
            f"{first.path}: no column '{column}' of labels.{nearest(column, own)} There are {listed(own)}."
        )
    column = column if column is not None else own[0]
    wanted_classes = first.classes(column)
    others = [c for c in centers if c.name != first.name]
    chosen = {c.name: _column(c, wanted_classes) for c in others}
    # Class folders have no title, but the table of another center may have a title for the same classes.
    titles = [column, *(c for o in others for c in label_columns(o) if o.classes(c) == wanted_classes)]
    title = next((t for t in titles if _says_more(t)), "")
    spaces = {title or "wanted": sorted(wanted_classes)}
    wanted = next(iter(spaces))
    # The largest vocabularies come first, so that a center that lacks some classes of a vocabulary is still
    # assigned to it.
    for center in sorted(others, key=lambda c: (-_size(c, chosen[c.name]), c.name)):
        own_column = chosen[center.name]
        if own_column is None or _space_of(center.classes(own_column), spaces) is not None:
            continue
        name = _space_name(own_column, f"{center.name}-labels", spaces)
        spaces[name] = sorted(center.classes(own_column))
    members = [_member(c, chosen[c.name], spaces) for c in others]
    held = [_test(t, spaces) for t in tests]
    correspondences = {
        name: _correspondence(wanted, name, spaces, centers, members) for name in list(spaces)[1:]
    }
    return Plan(spaces, Member(first, column, wanted), members, held, correspondences, reason)


def _grouped_alike(
    centers: Sequence[Found], tests: Sequence[Found]
) -> tuple[Sequence[Found], Sequence[Found]]:
    """A column that names groups in one place names them everywhere, even where each value occurs only once.
    Otherwise `fedmt check` could not find a patient who appears in two places."""
    names = Counter(f.group_column for f in (*centers, *tests) if f.group_column is not None)

    def with_groups(found: Found) -> Found:
        known = (name for name, _ in names.most_common() if name in found.groupable)
        return replace(found, group_column=next(known, None))

    return [with_groups(f) for f in centers], [with_groups(f) for f in tests]


def _reference(centers: Sequence[Found], tests: Sequence[Found], name: str | None) -> tuple[Found, str]:
    if name is None:
        likely, reason = likely_references(centers, tests)
        if len(likely) > 1:
            raise FedmtError(
                f"init: the centers {listed(c.name for c in likely)} have the same number of classes "
                f"({len(_vocabulary(likely[0]))}), but not the same classes. Choose the one that has the "
                "labels you want with --reference NAME. A test set with the classes of only one of them "
                "(--test PATH) also decides."
            )
        return likely[0], reason
    by_name = {c.name: c for c in centers}
    if name not in by_name:
        raise FedmtError(f"No center '{name}'.{nearest(name, by_name)} Found: {listed(by_name)}.")
    if not label_columns(by_name[name]):
        raise FedmtError(f"Center '{name}' has no labels, so it cannot be the reference center.")
    return by_name[name], "as you chose"


def likely_references(centers: Sequence[Found], tests: Sequence[Found]) -> tuple[list[Found], str]:
    """The center that has the wanted labels, as far as this can be guessed, and the reason.

    There are several if they have the same number of classes, but different ones, and no test set decides.
    """
    labeled = [c for c in centers if label_columns(c)]
    if not labeled:
        raise FedmtError(
            "No center has labels. The reference center needs a folder for each class, or a CSV with a "
            "column of labels."
        )
    called = [c for c in labeled if re.match(r"ref(erence)?([\W_\d]|$)", c.name, re.IGNORECASE)]
    if called:
        return called[:1], "by its name"
    most = max(len(_vocabulary(c)) for c in labeled)
    tied = [c for c in labeled if len(_vocabulary(c)) == most]
    if len(tied) == 1:
        return tied, "because it has the most classes"
    reason = "because no center has more classes, and no center with the same classes has fewer images"
    if len({_vocabulary(c) for c in tied}) > 1:
        deciding = {_vocabulary(c): t.name for c in tied for t in tests if _within(t, _vocabulary(c))}
        if len(deciding) != 1:
            return tied, "because no center has more classes"
        [(wanted, test)] = deciding.items()
        tied = [c for c in tied if _vocabulary(c) == wanted]
        reason = f"because the test set '{test}' has its classes"
    return [min(tied, key=lambda c: (c.images, c.name))], reason


def _vocabulary(center: Found) -> frozenset[str]:
    """The classes of a labeled center, according to its most likely column."""
    return center.classes(label_columns(center)[0])


def _within(test: Found, classes: frozenset[str]) -> bool:
    """Whether a test set has labels of these classes only. It may lack some of them."""
    return any(test.classes(column) <= classes for column in label_columns(test))


def _column(center: Found, wanted: frozenset[str]) -> str | None:
    """The column of a center's labels: the wanted labels if it has them, else the most likely column."""
    columns = label_columns(center)
    for column in columns:
        if center.classes(column) <= wanted:
            return column
    return columns[0] if columns else None


def _size(center: Found, column: str | None) -> int:
    return len(center.classes(column)) if column is not None else 0


def _space_of(classes: frozenset[str], spaces: dict[str, list[str]]) -> str | None:
    return next((name for name, own in spaces.items() if classes <= set(own)), None)


def _space_name(column: str, otherwise: str, taken: dict[str, list[str]]) -> str:
    """Named after the table's column if its title says more than 'label'."""
    return column if _says_more(column) and column not in taken else otherwise


def _says_more(title: str) -> bool:
    return title.casefold() not in ("", "label", "labels", "class", "target")


def _member(center: Found, column: str | None, spaces: dict[str, list[str]]) -> Member:
    space = None if column is None else _space_of(center.classes(column), spaces)
    return Member(center, column if space is not None else None, space)


def _test(test: Found, spaces: dict[str, list[str]]) -> Member:
    """Assigns the test to the first space that has all of its labels. If there is none, the test is left out
    (`why_left_out`)."""
    for column in label_columns(test):
        space = _space_of(test.classes(column), spaces)
        if space is not None:
            return Member(test, column, space)
    return Member(test)


def why_left_out(test: Found, spaces: dict[str, list[str]]) -> str:
    """Explains to the user why a test that fits no space is left out."""
    columns = label_columns(test)
    wanted = next(iter(spaces))
    if not columns:
        return "it looks like a test set, but it has no labels, so it is left out"
    unknown = sorted(test.classes(columns[0]) - set(spaces[wanted]))
    return (
        "it looks like a test set, but it is left out because its labels belong to no label space "
        f"({listed(unknown)} not among the wanted classes {listed(spaces[wanted])})"
    )


# -- correspondences ------------------------------------------------------------------------------


def _correspondence(
    wanted: str, space: str, spaces: dict[str, list[str]], centers: Sequence[Found], members: Sequence[Member]
) -> Proposal:
    counts, source = _counted(spaces[wanted], spaces[space], centers)
    entries: dict[str, Entry | None] = {}
    for name in spaces[wanted]:
        if counts.get(name):
            total = sum(counts[name].values())
            shares = {c: n / total for c, n in sorted(counts[name].items())}
            entries[name] = Entry(shares, "counted")
        else:
            entries[name] = by_name(name, spaces[space])
    reached = {c for e in entries.values() if e is not None for c in e.shares}
    occurring = {
        c for m in members if m.space == space and m.column is not None for c in m.found.classes(m.column)
    }
    unreached = sorted(occurring - reached)
    problem = f"no wanted class was found for {listed(unreached)}" if unreached else ""
    missing = [k for k, e in entries.items() if e is None]
    if missing:
        problem = f"nothing was found for {listed(missing)}"
    return Proposal(entries, source, problem)


def _counted(
    wanted: Sequence[str], classes: Sequence[str], centers: Sequence[Found]
) -> tuple[dict[str, Counter[str]], str]:
    """How often a wanted label and a label of the other space occur in the same row, and in whose tables."""
    counts: dict[str, Counter[str]] = {}
    sources = []
    for center in centers:
        columns = label_columns(center)
        fine = next((c for c in columns if center.classes(c) <= set(wanted)), None)
        coarse = next((c for c in columns if c != fine and center.classes(c) <= set(classes)), None)
        if fine is None or coarse is None:
            continue
        sources.append(center.name)
        for one, other in zip(center.columns[fine], center.columns[coarse], strict=True):
            counts.setdefault(one, Counter())[other] += 1
    return counts, " and ".join(sources)


def by_name(name: str, classes: Sequence[str]) -> Entry | None:
    """The class with the same name as `name`, or a similar one.

    >>> by_name("Basal-cell carcinoma", ["basal cell carcinoma", "nevus"])
    Entry(shares={'basal cell carcinoma': 1.0}, why='equal')
    >>> by_name("basal cell carcinoma", ["carcinoma", "nevus"])
    Entry(shares={'carcinoma': 1.0}, why='similar')
    >>> by_name("non-melanoma", ["melanoma"]) is None
    True
    """
    scored = [(_alike(_words(name), _words(other)), other) for other in classes]
    score, best = max(scored, key=lambda pair: pair[0])
    if score < SIMILAR or [s for s, _ in scored].count(score) > 1:
        return None
    return Entry({best: 1.0}, "equal" if score == 1 else "similar")


def _words(name: str) -> tuple[str, ...]:
    return tuple(w for w in re.split(r"[\W_]+", name.casefold()) if w)


def _alike(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    if set(one) & NEGATIONS != set(other) & NEGATIONS:
        return 0.0
    if one == other:
        return 1.0
    within = set(one) <= set(other) or set(other) <= set(one)
    ratio = SequenceMatcher(None, " ".join(one), " ".join(other)).ratio()
    return min(0.99, max(ratio, 0.8 if within else 0.0))


def accepted(plan: Plan, spaces: Sequence[str]) -> Plan:
    """The plan with the similar names of `spaces` treated as equal, after the user has looked at them."""
    changed = {}
    for name, proposal in plan.correspondences.items():
        if name in spaces:
            entries = {k: replace(e, why="equal") if e else None for k, e in proposal.entries.items()}
            proposal = replace(proposal, entries=entries)
        changed[name] = proposal
    return replace(plan, correspondences=changed)
