"""The rows of a CSV file, by the names of its columns."""

from __future__ import annotations

import csv
from collections.abc import Generator, Iterator
from pathlib import Path

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import class_name


def table_header(path: Path) -> list[str]:
    """The names of all columns, each of which must occur once.

    A column without a name is left out: pandas writes the numbers of the rows into one.
    """
    rows = _rows(path)
    header = next(rows)[1]
    rows.close()
    named = [column for column in header if column]
    for column in named:
        _position(column, header, path)
    return named


def table_rows(path: Path, columns: list[str]) -> Iterator[tuple[int, list[str]]]:
    """(line number in the file, stripped cells of `columns`) of each row that is not blank."""
    rows = _rows(path)
    header = next(rows)[1]
    positions = [_position(column, header, path) for column in columns]
    for line, row in rows:
        yield line, [row[i] for i in positions]


def table_lines(path: Path) -> Generator[tuple[int, list[str]], None, None]:
    """(line number, stripped cells) of each row that is not blank, including the header."""
    begins = 1  # the line that the next row begins on
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            # Not strict, a quote that is never closed would swallow all rows below it without an error.
            reader = csv.reader(file, strict=True)
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield reader.line_num, cells
                begins = reader.line_num + 1
    except UnicodeDecodeError:
        raise FedmtError(f"{path}: the table is not encoded in UTF-8. Save it as 'CSV UTF-8'.") from None
    except csv.Error as error:
        raise FedmtError(f"{path}, line {begins}: {_malformed(error)}") from None
    except OSError as error:
        raise FedmtError(f"{path}: the table cannot be read ({error.strerror}). Correct its path.") from None


def _malformed(error: csv.Error) -> str:
    """What the csv module says about a row, and what to do."""
    if "limit" in str(error):
        return (
            f"a cell has more than {csv.field_size_limit():,} characters. Shorten it, or close the double "
            "quote that it begins with."
        )
    return (
        f"a cell begins with a double quote, but does not end with one ({error}). Close the quote. A double "
        'quote within such a cell is written as two: "".'
    )


def _rows(path: Path) -> Generator[tuple[int, list[str]], None, None]:
    """(line number, stripped cells) of the header, and of each row that is not blank."""
    lines = table_lines(path)
    first, header = next(lines, (1, []))
    if not header:
        raise FedmtError(f"{path}: no header; expected the names of the columns on line 1.")
    check_commas(header, path)
    header = [class_name(title) for title in header]
    yield first, header
    for line, row in lines:
        if len(row) != len(header):
            raise FedmtError(
                f"{path}, line {line}: {len(row)} cells, expected {len(header)} as in the header; put a cell "
                "that contains a comma in double quotes."
            )
        yield line, row


def check_commas(header: list[str], path: Path) -> None:
    """Raises an error if the cells are separated by something else."""
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and sign in header[0]:
            raise FedmtError(
                f"{path}: the cells are separated by {name}. Save the table with commas instead."
            )


def _position(column: str, header: list[str], path: Path) -> int:
    column = class_name(column)  # accents may be encoded differently in a config
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise FedmtError(f"{path}, line 1: several columns are called '{column}'; rename all but one.")
    found = listed(header) or "none"
    hint = nearest(column, header)
    raise FedmtError(f"{path}, line 1: no column '{column}'; the columns are {found}.{hint}")
