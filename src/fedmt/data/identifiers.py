"""Columns of a table that name a row or its group. They are never labels, and those with repeated values are
groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fedmt.data.sites import MOST

NEARLY_ALL = 0.9
"""A column names the rows if at least this share of its values is distinct."""

PEOPLE = {"patient", "subject", "person", "participant", "pid", "mrn"}
THINGS = {"lesion", "case", "study", "exam", "examination", "visit", "specimen", "slide", "biopsy"}
SITES = {"hospital", "clinic", "site", "center", "centre", "institution", "scanner", "ward", "region"}
NUMBERS = {"id", "ids", "uid", "no", "nr", "number", "code", "key", "identifier"}


def is_identifier(cells: Sequence[str]) -> bool:
    """Whether a column has a different value in nearly every row.

    >>> is_identifier(["a1", "a2", "a3"]), is_identifier(["benign", "malignant", "benign"])
    (True, False)
    """
    return len(cells) > 2 and len(set(cells)) >= NEARLY_ALL * len(cells)


def names_groups(title: str, cells: Sequence[str]) -> bool:
    """Whether a column's title says that it names the person or thing that a row belongs to: `patient`,
    `Lesion ID`.

    `lesion` and `case` may also be diagnoses. They count as names only if nearly every cell has a digit.

    >>> names_groups("lesion", ["nevus", "melanoma"]), names_groups("lesion", ["HAM_1", "HAM_2"])
    (False, True)
    """
    words = _words(title)
    if not words <= PEOPLE | THINGS | NUMBERS | {"name"} or not words & (PEOPLE | THINGS):
        return False
    numbered = sum(any(c.isdigit() for c in cell) for cell in cells) >= NEARLY_ALL * len(cells)
    return bool(words & (PEOPLE | NUMBERS)) or numbered


def _words(title: str) -> set[str]:
    """`PatientId` consists of the words `patient` and `id`."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", title)
    return set(re.split(r"[\W_\d]+", spaced.casefold())) - {""}


def group_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns that name groups and have no missing values. People come first, because the numbers of
    their visits repeat too, followed by the columns with the largest groups."""
    likely = [t for t, cells in columns.items() if names_groups(t, cells) and "" not in cells]
    return sorted(likely, key=lambda title: (not _words(title) & PEOPLE, len(set(columns[title]))))


def group_column(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The first of `group_columns` whose values repeat."""
    return next((t for t in group_columns(columns) if len(set(columns[t])) < len(columns[t])), None)


def site_column(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The first column whose title says that it names where a sample is from, and whose cells could be sites.

    >>> site_column({"label": ["a", "b", "a"], "Hospital name": ["Bonn", "Kiel", "Bonn"]})
    'Hospital name'
    >>> site_column({"hospital": ["Bonn", "Bonn", "Bonn"]}), site_column({"site": ["Bonn", "", "Kiel"]})
    (None, None)
    """
    for title, cells in columns.items():
        words = _words(title)
        named = words & SITES and words <= SITES | NUMBERS | {"name"}
        if named and "" not in cells and 2 <= len(set(cells)) <= min(MOST, len(cells) - 1):
            return title
    return None
