"""Names of classes that may be mistakes in the data. `fedmt init` cannot know, so it asks in a note."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from fedmt.core.errors import listed
from fedmt.inputs.tabular import MISSING, is_number


def all_doubts(spaces: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on the classes of all label spaces.

    >>> all_doubts({"stage": ["1", "2"], "Bonn-labels": ["1.0", "2.0"]})[0].split(".")[0]
    "label spaces 'stage' and 'Bonn-labels': their classes differ only in spelling, such as '1' and '1"
    """
    notes = [note for space, classes in spaces.items() for note in doubts(space, classes)]
    for (one, own), (other, others) in combinations(spaces.items(), 2):
        plain = {_plain(name): name for name in own}
        if {_plain(name) for name in others} <= set(plain):
            name = next(name for name in others if name not in own)
            notes.append(
                f"label spaces '{one}' and '{other}': their classes differ only in spelling, such as "
                f"'{plain[_plain(name)]}' and '{name}'. If they are the same, spell them alike, so that the "
                "centers share a label space"
            )
    return notes


def doubts(space: str, classes: Sequence[str]) -> list[str]:
    """Notes on the classes of a label space.

    >>> doubts("triage", ["Benign", "benign", "malignant"])
    ["label space 'triage': 'Benign', 'benign' are different classes. If they are the same, spell them alike"]
    >>> doubts("stage", ["1", "1.0", "NA"])[1]
    "label space 'stage': 'NA' is a class. If it means that the label is missing, leave out these samples"
    """
    spelled: dict[str, list[str]] = {}
    for name in classes:
        spelled.setdefault(_plain(name), []).append(name)
    notes = [
        f"label space '{space}': {listed(same)} are different classes. If they are the same, spell them alike"
        for same in spelled.values()
        if len(same) > 1
    ]
    gaps = [name for name in classes if name.casefold() in {word.casefold() for word in MISSING}]
    if gaps:
        verb = "is a class. If it means" if len(gaps) == 1 else "are classes. If they mean"
        notes.append(
            f"label space '{space}': {listed(gaps)} {verb} that the label is missing, leave out these samples"
        )
    return notes


def _plain(name: str) -> str:
    return str(float(name)) if is_number(name) else re.sub(r"[\s_-]+", " ", name.casefold())
