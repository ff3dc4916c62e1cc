"""What `fedmt init` does for tables with a column of free text: finds the column, and writes [text]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedmt.inputs.text.asking import COLUMN

if TYPE_CHECKING:
    from fedmt.commands.init.found import Found

LIKELY = (COLUMN, "question", "sentence", "report", "note", "notes", "comment", "message", "description")

TABLE = (
    "# Words are hashed into this many buckets, so no center needs to know another's words. In a longer "
    "text, only the\n# first `length` words are read. With ngrams = 2, pairs of neighboring words count "
    "too.\n[text]\nfeatures = 4096\nlength = {length}\nngrams = 1"
)


def text_column(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The column that holds free text: most cells have three words or more, and most occur once."""
    prose = [title for title, cells in columns.items() if _is_prose(cells)]
    called = [title for title in prose if title.casefold() in LIKELY]
    return max(called or prose, key=lambda title: sum(map(len, columns[title])), default=None)


def _is_prose(cells: Sequence[str]) -> bool:
    wordy = sum(len(cell.split()) >= 3 for cell in cells)
    return 2 * wordy > len(cells) and 2 * len(set(cells)) > len(cells)


def longest(cells: Sequence[str]) -> int:
    """A power of two, from 32 to 512 words, that nearly all texts fit in."""
    words = sorted(len(cell.split()) for cell in cells)
    enough = words[int(0.99 * (len(words) - 1))]
    return next((n for n in (32, 64, 128, 256) if n >= enough), 512)


def are_texts(found: Sequence[Found]) -> bool:
    """Whether these are tables of texts."""
    return any(f.text_column is not None for f in found)


def text_table(found: Sequence[Found]) -> str:
    """The config's table [text]."""
    return TABLE.format(length=max(f.words for f in found))
