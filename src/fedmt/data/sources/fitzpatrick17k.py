"""Fitzpatrick 17k (Groh et al. 2021): clinical images of skin conditions, labeled in two label spaces.

The public table `fitzpatrick17k.csv` lists them (https://github.com/mattgroh/fitzpatrick17k); the images come
from two online atlases, and some are no longer available. Missing images are left out and counted, as in the
paper.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data.sampleset import SampleSet
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.images.decoding import read_images
from fedmt.inputs.images.files import images_below
from fedmt.inputs.images.shaping import ImageOptions
from fedmt.inputs.rows import table_rows

TABLE = "fitzpatrick17k.csv"
PAGE = "https://github.com/mattgroh/fitzpatrick17k"

NINE = LabelSpace(
    "nine",
    [
        "benign dermal",
        "benign epidermal",
        "benign melanocyte",
        "genodermatoses",
        "inflammatory",
        "malignant cutaneous lymphoma",
        "malignant dermal",
        "malignant epidermal",
        "malignant melanoma",
    ],
)
THREE = LabelSpace("three", ["benign", "malignant", "non-neoplastic"])
"""The table's names in alphabetical order. All names are listed, so that a class without images is
noticed."""

COLUMNS = {"nine": "nine_partition_label", "three": "three_partition_label"}


def read_fitzpatrick17k(path: str | Path, options: ImageOptions, root: Path | None = None) -> SampleSet:
    """The images that exist, labeled in "nine" and "three". `notes` counts the missing ones.

    path: the folder of the table, or the table itself. root: the folder of the images, named after the
    table's `md5hash` (`<md5hash>.jpg`, or another image format), at any depth; by default `images` next to
    the table.
    """
    table = Path(path) / TABLE if Path(path).is_dir() else Path(path)
    folder = table.parent / "images" if root is None else Path(root)
    if not table.is_file():
        raise FedmtError(
            f"{table}: there is no such table; expected the public {TABLE} ({PAGE}), in a folder with the "
            "images next to it in 'images'."
        )
    rows, notes = _read_table(table)
    files = _image_files(folder)
    present = [row for row in rows if row[0] in files]
    if not present:
        raise FedmtError(
            f"{folder}: none of its {len(files):,} images belongs to {table.name}, which lists {len(rows):,}"
            "; expected files called <md5hash>.jpg."
        )
    if len(present) < len(rows):
        notes = (*notes, _missing(present, rows))
    images = read_images(
        [files[row[0]] for row in present], [f"{table}, line {row[3]}" for row in present], options
    )
    labels = {"nine": torch.tensor([r[1] for r in present]), "three": torch.tensor([r[2] for r in present])}
    return SampleSet(images, labels, {"nine": NINE, "three": THREE}, notes)


Row = tuple[str, int, int, int]
"""md5hash, label in "nine", label in "three", line of the table."""


def _read_table(table: Path) -> tuple[list[Row], tuple[str, ...]]:
    """The labeled rows, with each image once, and notes on the others."""
    rows: dict[str, Row] = {}
    unlabeled = repeated = 0
    for line, (md5, nine, three) in table_rows(table, ["md5hash", *COLUMNS.values()]):
        where = f"{table}, line {line}"
        if not md5:
            raise FedmtError(f"{where}: the column 'md5hash' is empty; fill it in or remove the line.")
        if not nine or not three:
            unlabeled += 1
            continue
        row = (md5, NINE.index(nine, where), THREE.index(three, where), line)
        first = rows.setdefault(md5, row)
        if first[1:3] != row[1:3]:
            raise FedmtError(
                f"{where}: image {md5} has different labels than on line {first[3]}; remove one of the two "
                "lines."
            )
        # If an image were in the set twice, it could be trained on at one place and tested at another.
        repeated += first is not row
    if not rows:
        raise FedmtError(f"{table}: no labeled images; expected a line for each image below the header.")
    notes = []
    if unlabeled:
        notes.append(f"Fitzpatrick 17k: {unlabeled:,} lines of {table.name} without a label were left out.")
    if repeated:
        notes.append(
            f"Fitzpatrick 17k: {repeated:,} lines of {table.name} repeat an image; each image is used once."
        )
    return list(rows.values()), tuple(notes)


def _image_files(folder: Path) -> dict[str, Path]:
    """Files by name without extension. If two have the same name, the first in sorted order is used."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise FedmtError(
            f"{folder}: the image folder {problem}; put the images there, or set `root` to their folder."
        )
    found: dict[str, Path] = {}
    for file in images_below(folder):
        found.setdefault(file.stem, file)
    if not found:
        raise FedmtError(f"{folder}: no images in this folder; expected files called <md5hash>.jpg.")
    return found


def _missing(present: list[Row], rows: list[Row]) -> str:
    used, listed = Counter(row[1] for row in present), Counter(row[1] for row in rows)
    classes = "; ".join(f"{name} {used[k]:,} of {listed[k]:,}" for k, name in enumerate(NINE) if listed[k])
    return (
        f"Fitzpatrick 17k: {len(rows) - len(present):,} of {len(rows):,} images are missing; "
        f"{len(present):,} used: {classes}."
    )


class Fitzpatrick17k(Source):
    """`path` is the folder of the public table; the images are in `images` next to it, or in `root`."""

    name = "fitzpatrick17k"

    def read(self, request: Request) -> SampleSet:
        return read_fitzpatrick17k(request.path, request.images, request.spec.root)
