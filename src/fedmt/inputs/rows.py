"""The rows of a CSV file, by the names of its columns."""

from __future__ import annotations

import csv
from collections.abc import Generator, Iterator
from pathlib import Path

from fedmt.core.errors import FedmtError, listed, nearest


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


def _rows(path: Path) -> Generator[tuple[int, list[str]], None, None]:
    """(line number, stripped cells) of the header, and of each row that is not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            if not any(header):
                raise FedmtError(f"{path}: no header; expected the names of the columns on line 1.")
            yield 1, header
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) != len(header):
                    raise FedmtError(
                        f"{path}, line {reader.line_num}: {len(row)} cells, expected {len(header)} as in the "
                        "header; put a cell that contains a comma in double quotes."
                    )
                yield reader.line_num, [cell.strip() for cell in row]
    except UnicodeDecodeError:
        raise FedmtError(f"{path}: the table is not encoded in UTF-8. Save it as 'CSV UTF-8'.") from None
    except csv.Error as error:
        raise FedmtError(f"{path}, line {reader.line_num}: not a comma-separated table ({error}).") from None
    except OSError as error:
        raise FedmtError(f"{path}: the table cannot be read ({error.strerror}). Correct its path.") from None


def _position(column: str, header: list[str], path: Path) -> int:
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise FedmtError(f"{path}, line 1: several columns are called '{column}'; rename all but one.")
    hint = nearest(column, header)
    if len(header) == 1 and any(separator in header[0] for separator in ";\t"):
        hint = " The table must be separated by commas."
    found = listed(header) or "none"
    raise FedmtError(f"{path}, line 1: no column '{column}'; the columns are {found}.{hint}")
