"""Converts images to one size and number of channels, according to `ImageOptions`.

Sources that hold arrays (IDX, npz, CIFAR-100, the bundled set) go through `conform`; those that hold image
files go through `decoding`. Both keep the aspect ratio: an image is cropped around its center to the aspect
of the wanted size, then resized with an antialiased bilinear filter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fedmt.core.errors import FedmtError
from fedmt.inputs.images.cache import gib, map_cached, write_cached

RESIZING = 1
"""Part of the cache's key. Raise it when arrays are resized differently from before."""

CHUNK_BYTES = 64 * 2**20
"""Resizing works in float32. It works in chunks, so that it never needs a float copy of the whole set."""


@dataclass(frozen=True)
class ImageOptions:
    """How images are converted to one tensor.

    size: (height, width); None keeps the stored size, and all must agree.
    channels: 1 (grayscale) or 3 (RGB); None keeps the stored number, or 3 if any image has color.
    cache: folder for sets that need more than `memory_limit` bytes; they are memory-mapped from there.
    memory_limit: bytes; without a cache folder, a set that needs more is an error.
    window: (center, width) of grayscale DICOM files; None for each file's own.
    """

    size: tuple[int, int] | None = None
    channels: int | None = None
    cache: Path | None = None
    memory_limit: int = 2 * 2**30
    window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.channels not in (None, 1, 3):
            raise FedmtError(f"images.channels must be 1 (gray) or 3 (RGB), got {self.channels}.")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise FedmtError(f"images.size must be (height, width), at least 1 x 1, got {self.size}.")


AS_STORED = ImageOptions()


def conform(images: Tensor, options: ImageOptions, where: str) -> Tensor:
    """Images uint8 [N, C, H, W] in the channels and size of `options`. `where` is part of the error
    messages."""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise FedmtError(
            f"{where}: images must be uint8 [N, 1 or 3, height, width], "
            f"got {images.dtype} {tuple(images.shape)}."
        )
    if images.numel() == 0:
        raise FedmtError(f"{where}: it contains no images (its shape is {tuple(images.shape)}).")
    channels = options.channels or images.shape[1]
    size = options.size or (images.shape[2], images.shape[3])
    if (channels, *size) == tuple(images.shape[1:]):
        return images
    shape = (len(images), channels, *size)
    if math.prod(shape) > options.memory_limit:
        return _conform_on_disk(images, shape, options, where)
    result = torch.empty(shape, dtype=torch.uint8)
    start = 0
    for chunk in _conformed(images, shape):
        result[start : start + len(chunk)] = chunk
        start += len(chunk)
    return result


def _conform_on_disk(
    images: Tensor, shape: tuple[int, int, int, int], options: ImageOptions, where: str
) -> Tensor:
    """The same through the cache folder, keyed by the images themselves."""
    if options.cache is None:
        raise FedmtError(
            f"{where}: {shape[0]} images of {shape[1:]} need {gib(math.prod(shape))}, more than the memory "
            f"limit of {gib(options.memory_limit)}; set a cache folder, a smaller images.size or a higher "
            "limit."
        )
    digest = hashlib.blake2b(repr((RESIZING, tuple(images.shape), shape)).encode(), digest_size=16)
    for part in images.split(4096):
        digest.update(part.contiguous().numpy().data)
    path = options.cache / f"arrays-{digest.hexdigest()}.npy"
    found = map_cached(path)
    if found is None:
        write_cached(path, (chunk.numpy() for chunk in _conformed(images, shape)), shape)
        found = map_cached(path)
    if found is None:
        raise FedmtError(f"{path}: the cached images cannot be read back; set another cache folder.")
    return found


def _conformed(images: Tensor, shape: tuple[int, int, int, int]) -> Iterator[Tensor]:
    """Consecutive parts of `images`, uint8 [n, *shape[1:]], in channels and size of `shape`."""
    channels, size = shape[1], (shape[2], shape[3])
    largest = max(images[0].numel(), math.prod(shape[1:])) * 4
    for chunk in images.split(max(1, CHUNK_BYTES // largest)):
        # To grayscale before resizing and to RGB after it, so that resizing works on the fewest channels.
        if channels == 1 and chunk.shape[1] == 3:
            chunk = _gray(chunk)
        yield _fit(chunk, size).expand(-1, channels, -1, -1)


def _gray(images: Tensor) -> Tensor:
    """RGB uint8 [N, 3, H, W] to ITU-R 601 luma [N, 1, H, W], in the fixed-point weights Pillow uses."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(1, 3, 1, 1)
    weighted = (images * weights).sum(1, keepdim=True, dtype=torch.int32)
    return ((weighted + 32768) >> 16).to(torch.uint8)


def _fit(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images uint8 [N, C, H, W] cropped around the center to the aspect of `size`, then resized to it."""
    height, width = images.shape[2:]
    if (height, width) == size:
        return images
    kept_height = max(1, min(height, round(width * size[0] / size[1])))
    kept_width = max(1, min(width, round(height * size[1] / size[0])))
    top, left = (height - kept_height) // 2, (width - kept_width) // 2
    crop = images[:, :, top : top + kept_height, left : left + kept_width].float()
    resized = functional.interpolate(crop, size=size, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)
