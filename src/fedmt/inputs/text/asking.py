"""The texts that a trained model should predict: strings in Python, the rows of a CSV, the lines of a text
file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.inputs.base import Batch, Item
from fedmt.inputs.rows import table_header, table_rows
from fedmt.inputs.text.hashing import Hashed

COLUMN = "text"
"""The default name of the column of texts."""

BATCH = 256
NO_WORDS = "no word in it; expected at least one word of two letters or more"

Hash = Callable[[Sequence[str]], Hashed]


def batches(given: Any, hash_all: Hash) -> Iterator[Tensor]:
    """A string, or a list, array or Series of strings, as stored samples, one batch at a time."""
    texts = [given] if isinstance(given, str) else list(given)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise FedmtError(
                f"texts[{position}]: an object of type {type(text).__name__}; expected a string, or a list "
                "of strings."
            )
    for start in range(0, len(texts), BATCH):
        found = hash_all(texts[start : start + BATCH])
        empty = (found.words == 0).nonzero().flatten().tolist()
        if empty:
            raise FedmtError(f"texts[{start + empty[0]}]: {NO_WORDS}.")
        yield found.samples


def find_texts(paths: Sequence[Path], column: str | None, notes: list[str]) -> list[Item]:
    """The rows of a CSV's `column`, and the lines of any other file. Each is an item named by its text.

    column: by default, the one called 'text', or the only one.
    """
    items: list[Item] = []
    for path in paths:
        if path.is_dir():
            raise FedmtError(
                f"{path}: a folder; expected a CSV with a column of texts, or a file with one per line."
            )
        if not path.exists():
            raise FedmtError(f"{path}: there is no such file.")
        found = _cells(path, column) if path.suffix.lower() == ".csv" else _lines(path, notes)
        if not found:
            raise FedmtError(f"{path}: no texts in it.")
        items += found
    return items


def _cells(path: Path, column: str | None) -> list[Item]:
    titles = table_header(path)
    asked = column or (titles[0] if len(titles) == 1 else COLUMN)
    if asked not in titles:
        raise FedmtError(
            f"{path}: no column '{asked}'; the columns are {listed(titles) or 'none'}. Name the one that "
            f"holds the texts: --column NAME.{nearest(asked, titles)}"
        )
    return [Item(text, f"{path}, line {line}", path) for line, (text,) in table_rows(path, [asked])]


def _lines(path: Path, notes: list[str]) -> list[Item]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise FedmtError(
            f"{path}: this is not UTF-8 text; expected a CSV, or a text file with one text per line."
        ) from None
    except OSError as error:
        raise FedmtError(f"{path}: cannot be read ({error.strerror}).") from None
    texts = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = [Item(text, f"{path}, line {number}", path) for number, text in texts if text]
    blank = len(texts) - len(found) - (not texts[-1][1])  # the end of the last line does not start a new line
    if blank:
        notes.append(f"{path}: blank lines were skipped: {blank:,}.")
    return found


def read_texts(items: Sequence[Item], hash_all: Hash) -> Iterator[Batch]:
    """All items, one batch at a time. An item without a word has an error."""
    for start in range(0, len(items), BATCH):
        part = items[start : start + BATCH]
        found = hash_all([item.name for item in part])
        some = found.words > 0
        errors = [
            None if has else f"{item.where}: {NO_WORDS}."
            for item, has in zip(part, some.tolist(), strict=True)
        ]
        yield Batch(part, errors, found.samples[some])


def is_stored(given: Any) -> bool:
    """Whether a user passes samples that are already hashed."""
    return isinstance(given, Tensor) or (isinstance(given, np.ndarray) and given.dtype.kind in "iu")
