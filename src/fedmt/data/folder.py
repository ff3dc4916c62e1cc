"""A folder of class folders: `folder/melanoma/0001.jpg`, or a plain folder of unlabelled images."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fedmt.data.images import read_images
from fedmt.data.imageset import ImageOptions, ImageSet
from fedmt.errors import FedmtError
from fedmt.labels import LabelSpace

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
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
    every image below `path` is read, without labels. Hidden files, and files whose extension is not
    an image's, are passed over.
    """
    path = Path(path)
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "does not exist"
        raise FedmtError(f"{path}: the image folder {problem}; correct its path.")
    if not labelled:
        files = images_below(path)
        if not files:
            raise FedmtError(f"{path}: no images in this folder; {EXPECTED}.")
        return ImageSet(read_images(files, [str(path)] * len(files), options))

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
    space = space or LabelSpace(space_name, [folder.name for folder in folders])
    files, labels, where = [], [], []
    for folder in folders:
        label = space.index(folder.name, f"{path}, class folder '{folder.name}'")
        found = images_below(folder)
        files += found
        labels += [label] * len(found)
        where += [f"{path}, class '{folder.name}'"] * len(found)
    if not files:
        raise FedmtError(f"{path}: no images in its class folders; {EXPECTED}.")
    images = read_images(files, where, options)
    return ImageSet(images, {space.name: torch.tensor(labels)}, {space.name: space})


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise FedmtError(f"{folder}: cannot list the folder ({error.strerror}).") from None


def images_below(folder: Path) -> list[Path]:
    """Every image at any depth. Links to folders inside are not followed: they may lead in circles."""
    found = []
    for base, subfolders, names in os.walk(folder, onerror=_refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(base, name) for name in names if _is_image(name)]
    return sorted(found)


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def _refuse(error: OSError) -> None:
    raise FedmtError(f"{error.filename}: cannot list the folder ({error.strerror}).")
