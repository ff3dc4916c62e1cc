"""A folder of class folders: `folder/melanoma/0001.jpg`, or a plain folder of unlabeled images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import LabelSpace, class_name
from fedmt.data.sampleset import SampleSet, label_positions
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.images.decoding import depth_notes, read_images
from fedmt.inputs.images.files import files_below, is_image, no_images, passed_over
from fedmt.inputs.images.shaping import ImageOptions


def read_folder(
    path: str | Path,
    options: ImageOptions,
    space: LabelSpace | None = None,
    space_name: str = "labels",
    labeled: bool = True,
) -> SampleSet:
    """The images of `path`, in sorted order, labeled by the class folder they are in, at any depth.

    Without `space` the sorted folder names are the classes of a space called `space_name`. With it, each
    folder must be one of its classes, but a class without a folder is allowed. With `labeled=False` every
    image below `path` is read, without labels. Hidden files are skipped, and so are files whose extension is
    not that of an image. The latter are counted in a note.
    """
    path = Path(path)
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "does not exist"
        raise FedmtError(f"{path}: the image folder {problem}; correct its path.")
    if not labeled:
        files, others = files_below(path)
        if not files:
            raise no_images(path, others)
        images = read_images(files, [str(path)] * len(files), options)
        return SampleSet(images, notes=_notes(path, files, others, options))

    entries = _visible(path)
    folders = [entry for entry in entries if entry.is_dir()]
    loose = [entry for entry in entries if is_image(entry.name) and not entry.is_dir()]
    if not folders:
        raise FedmtError(
            f"{path}: it has no class folders. Expected a folder for each class, with its images in it. For "
            "images without labels, do not name a label space."
        )
    if loose:
        raise FedmtError(
            f"{path}: image '{loose[0].name}' is next to the class folders, so it has no label. Move it into "
            "one of them or remove it."
        )
    below = {folder: files_below(folder) for folder in folders}
    # Unpacked archives have folders such as __MACOSX, and nothing is lost without them.
    bare = [f for f in folders if space is not None and f.name not in space and not below[f][0]]
    folders = [folder for folder in folders if folder not in bare]
    names = [folder.name for folder in folders]
    space = space or LabelSpace(space_name, sorted({class_name(name) for name in names}))
    classes = label_positions(names, space, [f"{path}, class folder '{name}'" for name in names])
    files, labels, where = [], [], []
    others = Counter(entry.suffix.lower() for entry in entries if not entry.is_dir())
    for folder, label in zip(folders, classes.tolist(), strict=True):
        found, beside = below[folder]
        files += found
        labels += [label] * len(found)
        where += [f"{path}, class '{folder.name}'"] * len(found)
        others += beside
    if not files:
        raise no_images(path, others, "its class folders")
    images = read_images(files, where, options)
    notes = _notes(path, files, others, options)
    if bare:
        left = listed(folder.name for folder in bare)
        notes = (*notes, f"{path}: folders without images that are no class were skipped: {left}.")
    return SampleSet(images, {space.name: torch.tensor(labels)}, {space.name: space}, notes)


def _notes(path: Path, files: list[Path], others: Counter[str], options: ImageOptions) -> tuple[str, ...]:
    said = passed_over(others)
    return (*([f"{path}: {said}"] if said else []), *depth_notes(files, str(path), options))


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise FedmtError(f"{folder}: the folder cannot be listed ({error.strerror}).") from None


class Folder(Source):
    """`path` has a folder for each class, or is a plain folder of unlabeled images."""

    name = "folder"

    def read(self, request: Request) -> SampleSet:
        labeled = request.space is not None
        return read_folder(request.path, request.images, request.space, labeled=labeled)
