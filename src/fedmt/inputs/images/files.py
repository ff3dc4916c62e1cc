"""Which files in a folder are images, and what to say about the others."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from fedmt.core.errors import FedmtError

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
EXTENSIONS = (*JPEG, ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""Of the files that are read as images, wherever they are looked for."""

ENDINGS = 8
"""Endings of other files that a note names; DICOM files called by their numbers all have different ones."""

EXPECTED = f"expected files ending in {' '.join(EXTENSIONS)}"


def files_below(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Every image at any depth, and how many other files there are of each ending, hidden ones aside.

    Links to folders inside are not followed: they may lead in circles.
    """
    found, others = [], Counter[str]()
    for base, subfolders, names in os.walk(folder, onerror=_refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(base, name) for name in names if is_image(name)]
        others.update(
            Path(name).suffix.lower() for name in names if not is_image(name) and not name.startswith(".")
        )
    return sorted(found), others


def images_below(folder: Path) -> list[Path]:
    """Every image at any depth, as `files_below` finds them."""
    return files_below(folder)[0]


def passed_over(others: Counter[str]) -> str:
    """A sentence on files that are not read, some of which may be images; empty where there are none."""
    count = others.total()
    if not count:
        return ""
    endings = [ending or "no ending" for ending in sorted(others, key=lambda e: (-others[e], e))]
    named = ", ".join(endings[:ENDINGS]) + (", …" if len(endings) > ENDINGS else "")
    files = "1 file of another kind was" if count == 1 else f"{count:,} files of other kinds were"
    return f"{files} passed over ({named}); convert what is an image among them, to PNG say."


def no_images(folder: Path, others: Counter[str], place: str = "this folder") -> FedmtError:
    """The error of a folder without images, which says what is there instead."""
    return FedmtError(f"{folder}: no images in {place}; {EXPECTED}. {passed_over(others)}".strip())


def is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def _refuse(error: OSError) -> None:
    raise FedmtError(f"{error.filename}: cannot list the folder ({error.strerror}).")
