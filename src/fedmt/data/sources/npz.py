"""NumPy archives: `images` or `vectors`, and `labels` as strings, or as integers with their names in
`classes`; and vectors in a .npy file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import LabelSpace, class_name
from fedmt.data.sampleset import SampleSet, label_positions
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.archives import check_unpacked
from fedmt.inputs.images import ImageSpec
from fedmt.inputs.images.shaping import ImageOptions, conform
from fedmt.inputs.vectors import Vectors, VectorSpec
from fedmt.inputs.vectors.reading import array_2d, check_finite, load_arrays

Array = npt.NDArray[Any]


def read_npz(
    path: str | Path,
    options: ImageOptions,
    space: LabelSpace | None = None,
    space_name: str = "labels",
    labeled: bool = True,
) -> SampleSet:
    """The archive `path`.

    images: uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3.
    labels: strings [N], or integers [N] that are positions in `classes`, strings [J]. Without them
        the set is unlabeled. With `labeled=False`, they are ignored.

    Without `space` the classes are those of `classes`, or the sorted labels, in a space called `space_name`.
    With it, labels are matched by name, so the two may list their classes in different orders.
    """
    path = Path(path)
    arrays = _load(path, options.memory_limit)
    if "images" not in arrays:
        raise FedmtError(f"{path}: no array 'images'; its arrays are {listed(_names(path)) or 'none'}.")
    images = _channels_first(arrays["images"], path)
    if "labels" not in arrays or not labeled:
        return SampleSet(conform(images, options, str(path)))
    positions, space = _labels(arrays, len(images), "image", path, space, space_name)
    return SampleSet(conform(images, options, str(path)), {space.name: positions}, {space.name: space})


def read_vectors(
    path: Path, options: VectorSpec, space: LabelSpace | None = None, labels: Path | None = None
) -> SampleSet:
    """The vectors of an archive, float [N, D] under the name `options.array`, or of a .npy file.

    labels: for a .npy file, another .npy file with the class names, or with integers that are positions in
    `space`.
    """
    arrays = load_arrays(path, options.array)
    where = f"{path}, '{options.array}'" if len(arrays) > 1 else str(path)
    vectors = array_2d(arrays[options.array], where)
    if not len(vectors):
        raise FedmtError(f"{where}: it contains no vectors; expected [N, features] with N of 1 or more.")
    check_finite(vectors, (), where)
    if space is None:
        return SampleSet(vectors, input=Vectors)
    if labels is not None:
        arrays = {"labels": load_arrays(labels, "labels")["labels"], "classes": np.array(space.classes)}
    if "labels" not in arrays:
        raise FedmtError(
            f"{path}: no labels. An .npz archive has an array 'labels'; for a .npy file, the key `labels` "
            "names a second .npy file."
        )
    positions, space = _labels(arrays, len(vectors), "vector", labels or path, space)
    return SampleSet(vectors, {space.name: positions}, {space.name: space}, input=Vectors)


def read_labeled_vectors(path: Path, array: str) -> SampleSet:
    """An archive whose label space is not known yet. The space is derived from its labels, if it has any."""
    arrays = load_arrays(path, array)
    vectors = array_2d(arrays[array], f"{path}, '{array}'")
    if "labels" not in arrays:
        return SampleSet(vectors, input=Vectors)
    positions, space = _labels(arrays, len(vectors), "vector", path, None)
    return SampleSet(vectors, {space.name: positions}, {space.name: space}, input=Vectors)


def _labels(
    arrays: dict[str, Array],
    count: int,
    word: str,
    path: Path,
    space: LabelSpace | None,
    space_name: str = "labels",
) -> tuple[Tensor, LabelSpace]:
    """Positions int64 [count] in `space`, or in a space derived from the labels."""
    labels = arrays["labels"]
    if labels.shape != (count,):
        raise FedmtError(
            f"{path}: {count} {word}s but 'labels' of shape {labels.shape}; each {word} needs a label."
        )
    if labels.dtype.kind in "US":
        names = _text(labels, "labels", path)
        space = space or LabelSpace(space_name, sorted({class_name(name) for name in names}))
    elif labels.dtype.kind in "iu":
        classes = _classes(arrays, path)
        outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if outside.size:
            raise FedmtError(
                f"{path}: labels[{outside[0]}] is {labels[outside[0]]}, but there are {len(classes)} classes "
                f"(0 to {len(classes) - 1}): {listed(classes)}."
            )
        names = [classes[int(i)] for i in labels]
        space = space or LabelSpace(space_name, classes)
    else:
        raise FedmtError(f"{path}: 'labels' are {labels.dtype}; expected strings, or integers and 'classes'.")
    positions = label_positions(names, space, [f"{path}, labels[{i}]" for i in range(len(names))])
    return positions, space


def _load(path: Path, limit: int) -> dict[str, Array]:
    wanted = ("images", "labels", "classes")
    hint = " Set a higher images.memory_limit_gib if the archive is meant to be this large."
    try:
        check_unpacked(path, limit, hint, wanted)
        # Loaded without pickle: an archive is data and must not be able to run code.
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise FedmtError(f"{path}: a single array; expected an .npz archive with 'images' and 'labels'.")
        with archive:
            return {name: archive[name] for name in archive.files if name in wanted}
    except FileNotFoundError:
        raise FedmtError(f"{path}: this file does not exist. Correct its path.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if "pickle" in str(error).lower():
            error = ValueError("it is not an archive, or it holds Python objects, which are not loaded")
        raise FedmtError(f"{path}: the archive cannot be read: {error}. Write it with numpy.savez.") from None


def _names(path: Path) -> list[str]:
    """The names of all arrays of an archive that could be read."""
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


def _channels_first(images: Array, path: Path) -> Tensor:
    shape, images = images.shape, np.ascontiguousarray(images)
    if images.dtype != np.uint8:
        raise FedmtError(f"{path}: 'images' are {images.dtype}; expected uint8, values from 0 to 255.")
    if len(shape) == 3:
        return torch.from_numpy(images)[:, None]
    first, last = len(shape) == 4 and shape[1] in (1, 3), len(shape) == 4 and shape[3] in (1, 3)
    if first and last:
        raise FedmtError(
            f"{path}: 'images' of shape {shape} could be [N, H, W, C] or [N, C, H, W]; remove the channel "
            "axis of grayscale images, giving [N, H, W], or make the images larger."
        )
    if first:
        return torch.from_numpy(images)
    if last:
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    raise FedmtError(
        f"{path}: 'images' has shape {shape}; expected [N, H, W], [N, H, W, C] or [N, C, H, W] with C 1 or 3."
    )


def _classes(arrays: dict[str, Array], path: Path) -> list[str]:
    if "classes" not in arrays:
        raise FedmtError(f"{path}: 'labels' are integers, so an array 'classes' must name them, in order.")
    classes = arrays["classes"]
    if classes.ndim != 1 or classes.dtype.kind not in "US":
        raise FedmtError(f"{path}: 'classes' is {classes.dtype} {classes.shape}; expected a list of names.")
    return _text(classes, "classes", path)


def _text(array: Array, name: str, path: Path) -> list[str]:
    try:
        return [item.decode() if isinstance(item, bytes) else str(item) for item in array.tolist()]
    except UnicodeDecodeError:
        raise FedmtError(f"{path}: '{name}' are bytes that are not UTF-8; store them as strings.") from None


class Npz(Source):
    """`path` is an archive with the arrays `images` or `vectors`, `labels` and `classes`."""

    name = "npz"
    input: ClassVar[str | None] = None

    def read(self, request: Request) -> SampleSet:
        if isinstance(request.options, VectorSpec):
            return read_vectors(request.path, request.options, request.space)
        if not isinstance(request.options, ImageSpec):
            raise FedmtError(f"{request.where}: source 'npz' reads images or vectors; choose another source.")
        return read_npz(request.path, request.images, request.space, labeled=request.space is not None)


class Npy(Source):
    """`path` is a .npy file of vectors, and `labels` is a .npy file of their labels."""

    name = "npy"
    input: ClassVar[str | None] = "vectors"

    def read(self, request: Request) -> SampleSet:
        assert isinstance(request.options, VectorSpec)
        return read_vectors(request.path, request.options, request.space, request.spec.labels)
