"""A folder of class folders: `folder/melanoma/0001.jpg`, or a plain folder of unlabelled images."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import torch

from fedmt.data.images import depth_notes, read_images
from fedmt.data.imageset import ImageOptions, ImageSet, label_positions
from fedmt.errors import FedmtError
from fedmt.labels import LabelSpace, class_name

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
EXTENSIONS = (*JPEG, ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""Of the files that are read as images, wherever they are looked for."""

ENDINGS = 8
"""Endings of other files that a note names; DICOM files called by their numbers all have different ones."""

EXPECTED = f"expected files ending in {' '.join(EXTENSIONS)}"


def read_folder(
    path: str | Path,
    options: ImageOptions,
    space: LabelSpace | None = None,
    space_name: str = "labels",
    labelled: bool = True,
) -> ImageSet:
    """The images of `path`, in sorted order, labelled by the class folder they are in, at any depth.

    Without `space` the sorted folder names are the classes of a space called `space_name`. With it,
    each folder must be one of its classes; a class without a folder is fine. With `labelled=False`
    every image below `path` is read, without labels. Hidden files are passed over, and so are files
    whose extension is not an image's; these are counted in a note.
    """
    path = Path(path)
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "does not exist"
        raise FedmtError(f"{path}: the image folder {problem}; correct its path.")
    if not labelled:
        files, others = files_below(path)
        if not files:
            raise no_images(path, others)
        images = read_images(files, [str(path)] * len(files), options)
        return ImageSet(images, notes=_notes(path, files, others))

    entries = _visible(path)
    folders = [entry for entry in entries if entry.is_dir()]
    loose = [entry for entry in entries if _is_image(entry.name) and not entry.is_dir()]
    if not folders:
        raise FedmtError(
            f"{path}: no class folders; expected a folder for each class, with its images in it, "
            "or name no label space for images without labels."
        )
    if loose:
        raise FedmtError(
            f"{path}: image '{loose[0].name}' lies beside the class folders, so it has no label; "
            "move it into one of them or away."
        )
    names = [folder.name for folder in folders]
    space = space or LabelSpace(space_name, sorted({class_name(name) for name in names}))
    classes = label_positions(names, space, [f"{path}, class folder '{name}'" for name in names])
    files, labels, where = [], [], []
    others = Counter(entry.suffix.lower() for entry in entries if not entry.is_dir())
    for folder, label in zip(folders, classes.tolist(), strict=True):
        found, beside = files_below(folder)
        files += found
        labels += [label] * len(found)
        where += [f"{path}, class '{folder.name}'"] * len(found)
        others += beside
    if not files:
        raise no_images(path, others, "its class folders")
    images = read_images(files, where, options)
    notes = _notes(path, files, others)
    return ImageSet(images, {space.name: torch.tensor(labels)}, {space.name: space}, notes)


def _notes(path: Path, files: list[Path], others: Counter[str]) -> tuple[str, ...]:
    said = passed_over(others)
    return (*([f"{path}: {said}"] if said else []), *depth_notes(files, str(path)))


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise FedmtError(f"{folder}: cannot list the folder ({error.strerror}).") from None


def files_below(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Every image at any depth, and how many other files there are of each ending, hidden ones aside.

    Links to folders inside are not followed: they may lead in circles.
    """
    found, others = [], Counter[str]()
    for base, subfolders, names in os.walk(folder, onerror=_refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(base, name) for name in names if _is_image(name)]
        others.update(
            Path(name).suffix.lower() for name in names if not _is_image(name) and not name.startswith(".")
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


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def _refuse(error: OSError) -> None:
    raise FedmtError(f"{error.filename}: cannot list the folder ({error.strerror}).")
