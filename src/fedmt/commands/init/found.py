"""What `fedmt init` finds: a center or a test, described as in a config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedmt.core.errors import FedmtError
from fedmt.inputs.images.looking import NOTHING_SEEN, Seen


@dataclass(frozen=True)
class Found:
    """Where the images and labels are, described as in a config.

    columns: the labels of every image by where they stand: a table's column; "" for class folders and arrays;
        empty where there are none. The most likely column is the first.
    seen: what a look at some of the images told.
    beside: folders that a table's images lie in. notes: what was not clear, for the user.
    array: of an archive of vectors, the name of these.
    text_column: where the texts stand in a table of texts; words: a length that nearly all of them fit in.
    group_column: of what must stay together, such as a patient. groupable: all columns that could be it.
    site_column: says where each sample is from; of a test set, results are then reported by site.
    identifiers: columns of a table of features that name a row or what it belongs to; features: all others
        but the labels; telling: those of the labels that are some only since they tell another label.
    """

    name: str
    path: Path
    source: str
    images: int
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image_column: str = "image"
    root: Path | None = None
    seen: Seen = NOTHING_SEEN
    beside: frozenset[Path] = frozenset()
    notes: tuple[str, ...] = ()
    group_column: str | None = None
    groupable: tuple[str, ...] = ()
    site_column: str | None = None
    identifiers: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    telling: tuple[str, ...] = ()
    text_column: str | None = None
    words: int = 0
    array: str | None = None

    @property
    def word(self) -> str:
        """What a sample is called."""
        if self.text_column is not None:
            return "texts"
        if self.array is not None:
            return "vectors"
        return "rows" if self.source == "table" else "images"

    def classes(self, column: str) -> frozenset[str]:
        return frozenset(self.columns[column])


@dataclass(frozen=True)
class LeftOut:
    """Something among the centers that is not a center, and why. Nothing is skipped silently."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} was left out: {self.reason}."


class NoImages(FedmtError):
    """The reason given for a table that names no images. It may be a table of features."""


class NameNotUTF8(FedmtError):
    """The name of a class or a center that no TOML file can hold. Without the name, labels would be lost."""


def is_utf8(name: str) -> bool:
    """Whether a file's name can be written to a file. Python keeps bytes that are not UTF-8 as lone
    surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def printable(name: str) -> str:
    r"""A file's name for a message. Bytes that are not UTF-8 are escaped, as in `n\xe6vus`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def label_columns(found: Found) -> list[str]:
    """Where its labels may be, the most likely place first."""
    return list(found.columns)
