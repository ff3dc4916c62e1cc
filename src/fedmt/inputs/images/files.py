"""Which files in a folder are images, and what to say about the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedmt.core.errors import FedmtError

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
DICOM = (".dcm", ".dicom")
EXTENSIONS = (*JPEG, ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", *DICOM)
"""The extensions of the files that are read as images, everywhere."""

ENDINGS = 8
"""Number of extensions of other files that a note names. DICOM files named by numbers all have different
ones."""

UNNAMED_DICOM = "DICOM without its extension"
"""How files are counted that have the DICOM marker but another extension or none."""

EXPECTED = f"expected files ending in {' '.join(EXTENSIONS)}"


def files_below(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Every image at any depth, and the number of other files per extension, without hidden files.

    Links to folders inside are not followed: they may lead in circles.
    """
    found, others = [], Counter[str]()
    for base, subfolders, names in os.walk(folder, onerror=_refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(base, name) for name in names if is_image(name)]
        others.update(_kind(Path(base, name)) for name in names if not is_image(name) and name[0] != ".")
    return sorted(found), others


def images_below(folder: Path) -> list[Path]:
    """Every image at any depth, as `files_below` finds them."""
    return files_below(folder)[0]


def located(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files that a table names: at `folder / name`, or else, for a bare file name, the only such file in
    a subfolder.

    Many published tables name their images without the class folder that contains each one. Tables from
    Windows have backslashes in their paths.
    """
    names = [
        name.replace("\\", "/") if "\\" in name and not (folder / name).exists() else name for name in names
    ]
    direct = [folder / name for name in names]
    lost = {path.name for path, name in zip(direct, names, strict=True) if path.name == name}
    lost = {name for name in lost if not (folder / name).exists()}
    if not lost or not folder.is_dir():
        return direct
    below: dict[str, list[Path]] = {}
    for path in images_below(folder):
        if path.name in lost:
            below.setdefault(path.name, []).append(path)
    only = {name: paths[0] for name, paths in below.items() if len(paths) == 1}
    return [only.get(name, path) for path, name in zip(direct, names, strict=True)]


def passed_over(others: Counter[str]) -> str:
    """A note on files that are not read, some of which may be images. Empty if there are none."""
    count = others.total()
    if not count:
        return ""
    endings = [ending or "no ending" for ending in sorted(others, key=lambda e: (-others[e], e))]
    named = ", ".join(endings[:ENDINGS]) + (", …" if len(endings) > ENDINGS else "")
    files = "1 file of another kind was" if count == 1 else f"{count:,} files of other kinds were"
    said = f"{files} skipped ({named}). If any of them are images, convert them, for example to PNG."
    marked = others[UNNAMED_DICOM]
    if marked:
        # They are not read, because the contents of a folder would then depend on more than its visible
        # names.
        said += f" DICOM files are read only if their names end in .dcm. Rename the {marked:,} that do not."
    return said


def no_images(folder: Path, others: Counter[str], place: str = "this folder") -> FedmtError:
    """The error for a folder without images, which says what it contains instead."""
    return FedmtError(f"{folder}: no images in {place}; {EXPECTED}. {passed_over(others)}".strip())


def is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def is_dicom_name(name: str) -> bool:
    return name.lower().endswith(DICOM)


def has_dicom_mark(path: Path) -> bool:
    """Whether the letters DICM follow its preamble, as in every DICOM file."""
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _kind(path: Path) -> str:
    """How a file that is not read is counted: by its extension. A number is not an extension, as in
    `1.2.840.10008`."""
    ending = path.suffix.lower()
    if (not ending or ending[1:].isdigit()) and path.name != "DICOMDIR" and has_dicom_mark(path):
        return UNNAMED_DICOM
    return ending


def _refuse(error: OSError) -> None:
    raise FedmtError(f"{error.filename}: the folder cannot be listed ({error.strerror}).")
