"""What a center reveals about its table, so that all centers can encode theirs in the same way. It never
reveals a row.

For a numeric column: the number of values, their mean and their variance. For a categorical column: how often
each category occurs. Identifiers, which differ in nearly every row, are not features, and nothing about their
values is revealed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fedmt.core.errors import FedmtError
from fedmt.inputs.tabular import Frame, also, frame_of

FORMAT = "fedmt-statistics-1"

MOST_CATEGORIES = 100
"""A text column with more distinct values than this is free text or a code, not a category."""

Kind = Literal["numeric", "categorical", "empty", "identifier"]


@dataclass(frozen=True)
class ColumnStatistics:
    """kind: 'empty' means no value at all, and is compatible with every other kind.

    count: the number of values that are not missing. mean, variance: for a numeric column; the variance is
        divided by `count`.
    counts: for a categorical column, the count of each category.
    """

    kind: Kind
    count: int = 0
    missing: int = 0
    mean: float = 0.0
    variance: float = 0.0
    counts: Mapping[str, int] | None = None

    @property
    def possible(self) -> bool:
        """Whether a table may have these statistics. They may come from elsewhere."""
        counts = (self.count, self.missing, *(self.counts or {}).values())
        return min(counts) >= 0 and isfinite(self.mean) and 0 <= self.variance < inf


@dataclass(frozen=True)
class Statistics:
    """name: the name of the center or file. rows: their number. columns: in the order of the table."""

    name: str
    rows: int
    columns: Mapping[str, ColumnStatistics]

    @classmethod
    def of(
        cls, table: Any, name: str = "", aside: Collection[str] = (), categorical: Collection[str] = ()
    ) -> Statistics:
        """The statistics of a Frame, a pandas DataFrame, or a mapping of names to columns.

        aside: columns that are not features, such as labels. categorical: columns of numbers that are codes.
        """
        frame = table if isinstance(table, Frame) else frame_of(table, name or "the table")
        for column in categorical:
            frame.column(column)
        found = {
            column: _column(frame, column, column in categorical)
            for column in frame.columns
            if column not in aside
        }
        return cls(name or frame.name, len(frame), found)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, path: Path) -> Statistics:
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw.pop("format", None) != FORMAT:
                raise ValueError("another format")
            found = TypeAdapter(cls).validate_python(raw)
            if not all(column.possible for column in found.columns.values()):
                raise ValueError("numbers that no table has")
            return found
        except OSError as error:
            raise FedmtError(f"{path} cannot be read ({error.strerror}). Correct its path.") from None
        except (ValueError, AttributeError, ValidationError):
            raise FedmtError(
                f"{path}: these are not the statistics of a table. `fedmt schema --statistics TABLE --out "
                f"{path.name}` writes them."
            ) from None


def _column(frame: Frame, name: str, categorical: bool) -> ColumnStatistics:
    cells = frame.text(name)
    values = [cell for cell in cells if cell]
    missing = len(cells) - len(values)
    if not values:
        return ColumnStatistics("empty", 0, missing)
    numeric = not categorical and frame.is_numeric(name)
    if is_identifier(name, values, numeric):
        return ColumnStatistics("identifier", len(values), missing)
    if not numeric:
        return ColumnStatistics(
            "categorical", len(values), missing, counts=dict(sorted(Counter(values).items()))
        )
    numbers = frame.numbers(name)
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        place = frame.place(int(infinite[0]))
        raise FedmtError(
            f"{place}: column '{name}' is infinite{also(len(infinite))}, expected a number. Correct it, or "
            "leave the cell empty."
        )
    numbers = numbers[~np.isnan(numbers)]
    return ColumnStatistics("numeric", len(numbers), missing, float(numbers.mean()), float(numbers.var()))


def is_identifier(name: str, values: list[str], numeric: bool) -> bool:
    """Whether a column names its rows: text that differs in nearly every row or has very many values, or
    distinct whole numbers that are in order or have the title of an identifier."""
    distinct = len(set(values))
    if not numeric:
        return distinct > MOST_CATEGORIES or (len(values) >= 10 and distinct > 0.9 * len(values))
    if len(values) < 10 or distinct < len(values) or not all(re.fullmatch(r"-?\d+", v) for v in values):
        return False
    whole = [int(v) for v in values]
    ordered = all(a < b for a, b in pairwise(whole))
    return ordered or re.search(r"(^|[\W_])(id|no|nr|number|key|index)($|[\W_])|Id$|ID$", name) is not None
