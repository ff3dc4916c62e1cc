"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped.

A file is two zero bytes, the type (8: uint8), the number of dimensions, each dimension as a big-endian
32-bit integer, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data.sampleset import SampleSet, Split, check_split
from fedmt.data.sources.base import Request, Source
from fedmt.data.specs import SourceSpec
from fedmt.inputs.images.shaping import ImageOptions, conform


def read_idx(
    images_path: str | Path,
    labels_path: str | Path | None,
    options: ImageOptions,
    space: LabelSpace | None = None,
) -> SampleSet:
    """Images [N, H, W] and labels [N], positions in `space`, of two IDX files.

    Without `space` the classes are the numbers themselves, in a space called "labels". With
    `labels_path=None` the set is unlabeled.
    """
    images = _read(Path(images_path), dimensions=3, what="images")[:, None]
    if labels_path is None:
        return SampleSet(conform(images, options, str(images_path)))
    labels = _read(Path(labels_path), dimensions=1, what="labels").to(torch.int64)
    if len(labels) != len(images):
        raise FedmtError(
            f"{labels_path}: {len(labels)} labels, but '{images_path}' has {len(images)} images; "
            "give two files of the same set."
        )
    images = conform(images, options, str(images_path))
    highest = int(labels.max())
    space = space or LabelSpace("labels", [str(i) for i in range(highest + 1)])
    if highest >= len(space):
        position = int(labels.argmax())
        raise FedmtError(
            f"{labels_path}: label {position + 1} is {highest}, outside label space '{space.name}', which "
            f"has {len(space)} classes (0 to {len(space) - 1})."
        )
    return SampleSet(images, {space.name: labels}, {space.name: space})


def read_mnist_folder(path: str | Path, split: Split, options: ImageOptions, names: LabelSpace) -> SampleSet:
    """A split of the standard four files (`train-images-idx3-ubyte.gz`, ...), gzipped or not."""
    path = Path(path)
    check_split(split, str(path))
    prefix = "train" if split == "train" else "t10k"
    return read_idx(_find(path, f"{prefix}-images", 3), _find(path, f"{prefix}-labels", 1), options, names)


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    # Some copies of the set use a dot instead of the last hyphen in the name.
    names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FedmtError(f"{folder}: there is no '{names[0]}' or '{names[1]}' in it; correct the path.")


def _read(path: Path, dimensions: int, what: str) -> Tensor:
    """The uint8 values of one file, in the shape it states."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FedmtError(f"{path}: truncated or damaged gzip file ({error}); download it again.") from None
    except OSError as error:
        raise FedmtError(f"{path}: the {what} cannot be read ({error.strerror}). Correct the path.") from None
    expected = bytes([0, 0, 8, dimensions])
    if content[:4] != expected:
        raise FedmtError(
            f"{path}: not an IDX file of {what}: it begins with {content[:4].hex() or 'nothing'}, "
            f"expected {expected.hex()} (uint8, {dimensions} dimensions)."
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise FedmtError(f"{path}: truncated within its header ({len(content)} bytes); download it again.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    size = math.prod(shape)
    if len(content) - start != size:
        state = "truncated" if len(content) - start < size else "too long"
        raise FedmtError(
            f"{path}: {state}: its header states {' x '.join(map(str, shape))} = {size} values, but it has "
            f"{len(content) - start}. Download it again."
        )
    if size == 0:
        raise FedmtError(f"{path}: it holds no {what} (its shape is {shape}).")
    # A bytearray, because a tensor must own writable memory.
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).reshape(shape)


class Idx(Source):
    """`path` is the images file and `labels` the labels file, or `path` is a folder with the standard file
    names."""

    name = "idx"

    def read(self, request: Request) -> SampleSet:
        path, space = request.path, request.space
        if not path.is_dir():
            return read_idx(path, request.spec.labels, request.images, space)
        if space is None:
            raise FedmtError(f"{request.where}: an IDX folder has labels. Name their label space.")
        return read_mnist_folder(path, request.split, request.images, space)

    def has_test_part(self, spec: SourceSpec) -> bool:
        return spec.path is not None and spec.path.is_dir()
