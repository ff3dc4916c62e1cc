"""A table in memory: the columns of a CSV or Parquet file, or of a data frame, with the place of each row.

A cell is text, or a number if the file stores numbers. The input decides what a column means.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest, together
from fedmt.core.section import Section
from fedmt.inputs.rows import table_header, table_rows

if TYPE_CHECKING:
    from fedmt.inputs.base import Input

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NAN", "null", "NULL")
"""Cells that stand for a missing value, in addition to the empty ones of a Parquet file or a data frame."""

SUFFIXES = (".csv", ".parquet", ".pq")

EXACT = 2**53
"""float64 has every whole number up to this one."""


@dataclass(frozen=True, eq=False)
class Frame:
    """name: the name of the file, for messages. columns: object [N] of text with '' for missing values, or
    float64 [N] with NaN for missing values. lines: the number of each row. word: what this number counts."""

    name: str
    columns: Mapping[str, NDArray[Any]]
    lines: Sequence[int]
    word: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        return f"{self.name}, {self.word} {self.lines[row]}"

    def column(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            raise FedmtError(
                f"{self.name}: no column '{name}'; the columns are {listed(self.columns, 12)}."
                f"{nearest(name, self.columns)}"
            )
        return self.columns[name]

    def text(self, name: str) -> list[str]:
        """A column as text, with '' for missing values and whole numbers without a decimal point."""
        cells = self.column(name)
        if cells.dtype == object:
            return ["" if cell in MISSING else cell for cell in cells]
        return ["" if np.isnan(v) else str(int(v)) if v.is_integer() else repr(float(v)) for v in cells]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as float64 [N], with NaN for missing values. An error names cells that are not numbers."""
        cells = self.column(name)
        if cells.dtype != object:
            return cells.astype(np.float64)
        try:
            return np.array(["nan" if cell in MISSING else cell for cell in cells], dtype=np.float64)
        except ValueError:
            wrong = [i for i, cell in enumerate(cells) if cell not in MISSING and not is_number(cell)]
            raise together(
                [f"{self.place(i)}: column '{name}' has '{cells[i]}', expected a number." for i in wrong]
            ) from None

    def is_numeric(self, name: str) -> bool:
        """Whether every cell that is not missing is a number."""
        cells = self.column(name)
        return cells.dtype != object or all(cell in MISSING or is_number(cell) for cell in cells)

    def chosen(self, patterns: Sequence[str] | str | None, aside: Collection[str] = ()) -> list[str]:
        """The columns selected by names or patterns such as 'emb_*', each once. By default, all. Those
        `aside` are never included."""
        if patterns is None:
            return [name for name in self.columns if name not in aside]
        found: dict[str, None] = {}
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            if pattern in aside:
                raise FedmtError(
                    f"{self.name}: column '{pattern}' holds labels or groups, so it cannot be a feature too."
                )
            own = [name for name in self.columns if fnmatchcase(name, pattern) and name not in aside]
            if (
                pattern in self.columns
            ):  # its name may contain brackets, which have a special meaning in a pattern
                own = [pattern]
            elif not own:
                self.column(pattern)
            found |= dict.fromkeys(own)
        return list(found)


class FromTable(Section):
    """Options of an input that can be read from the rows of a table (source 'table')."""

    @abstractmethod
    def samples(self, frame: Frame, aside: Collection[str]) -> tuple[Tensor, Input]:
        """The rows as stored samples. aside: columns that are not features, such as labels and groups."""


def also(count: int) -> str:
    """Added after a place with a problem: the number of further rows that have it."""
    return "" if count == 1 else f", as in {count - 1:,} more row{'s' if count > 2 else ''}"


def is_number(cell: str) -> bool:
    try:
        return not isnan(float(cell))
    except ValueError:
        return False


def read_frame(path: Path) -> Frame:
    """A CSV or Parquet file, by its suffix."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise FedmtError(f"{path}: expected a table, a .csv or .parquet file.")
    frame = _read_csv(path) if suffix == ".csv" else _read_parquet(path)
    if not len(frame):
        raise FedmtError(f"{path}: no rows; expected a row for each sample below the header.")
    return frame


def frame_of(columns: Any, name: str) -> Frame:
    """The same for a pandas DataFrame, or a mapping of names to equally long columns."""
    found: dict[str, NDArray[Any]] = {}
    twice = [title for title, count in Counter(map(str, columns)).items() if count > 1]
    if twice:
        raise FedmtError(f"{name}: several columns are called {listed(twice)}. Rename or drop all but one.")
    for title in columns:
        values = np.asarray(columns[title])
        if values.ndim != 1:
            raise FedmtError(
                f"{name}: column '{title}' has shape {values.shape}, expected one value per row."
            )
        found[str(title)] = _cells(values)
    sizes = {len(cells) for cells in found.values()}
    if len(sizes) > 1:
        each = ", ".join(f"'{title}' {len(cells)}" for title, cells in found.items())
        raise FedmtError(f"{name}: the columns differ in length: {each}.")
    return Frame(name, found, range(sizes.pop() if sizes else 0), "row")


def _read_csv(path: Path) -> Frame:
    header = table_header(path)
    rows = list(table_rows(path, header))
    columns: dict[str, NDArray[Any]] = {}
    for place, title in enumerate(header):
        columns[title] = np.array([normalize("NFC", cells[place]) for _, cells in rows], dtype=object)
    return Frame(str(path), columns, [line for line, _ in rows])


def _read_parquet(path: Path) -> Frame:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise FedmtError(
            f"{path}: reading Parquet needs pyarrow; install the extra: pip install 'fedmt[tables]'."
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except FileNotFoundError:
        raise FedmtError(f"{path}: there is no such file; correct its path.") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise FedmtError(f"{path}: not a readable Parquet file ({error}).") from None
    columns: dict[str, NDArray[Any]] = {}
    for title, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if (
            pyarrow.types.is_list(kind)
            or pyarrow.types.is_fixed_size_list(kind)
            or pyarrow.types.is_large_list(kind)
        ):
            columns |= _spread(title, column.to_pylist(), path)
            continue
        columns[title] = _cells(np.array(column.to_pylist(), dtype=object))
    return Frame(str(path), columns, range(1, table.num_rows + 1), "row")


def _spread(title: str, rows: Sequence[Sequence[float] | None], path: Path) -> dict[str, NDArray[Any]]:
    """Splits a column of lists, such as an embedding, into one column per position: 'title[0]', …"""
    sizes = {-1 if row is None else len(row) for row in rows}
    if len(sizes) > 1 or -1 in sizes:
        first = next(i for i, row in enumerate(rows, 1) if row is None or len(row) != len(rows[0] or ()))
        raise FedmtError(
            f"{path}, row {first}: the lists of column '{title}' differ in length or are missing; each row "
            "needs the same number of values as the first."
        )
    try:
        values = np.array(rows, dtype=np.float64).reshape(len(rows), -1)
    except (TypeError, ValueError):
        raise FedmtError(
            f"{path}: the lists of column '{title}' hold values other than numbers, such as "
            f"{next(iter(rows[0] or ()), None)!r}."
        ) from None
    return {f"{title}[{place}]": values[:, place] for place in range(values.shape[1])}


def _cells(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers and booleans as float64 with NaN for missing values, and everything else as text.

    Whole numbers that float64 would round are text too: two patients must not get the same number.
    """
    if values.dtype.kind in "bf":
        return values.astype(np.float64)
    cells = [None if _is_missing(v) else v for v in values.tolist()]
    if all(v is None or (isinstance(v, bool | int | float | np.number) and not _is_long(v)) for v in cells):
        return np.array([np.nan if v is None else float(v) for v in cells], dtype=np.float64)
    text = ["" if v is None else normalize("NFC", str(v).strip()) for v in cells]
    return np.array(text, dtype=object)


def _is_missing(cell: Any) -> bool:
    """None, NaN, or pandas' NaT or NA, which cannot be compared."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return bool(cell != cell)  # NaN is not equal to itself


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > EXACT
