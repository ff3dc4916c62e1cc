"""Image files to one uint8 tensor: decoded by Pillow in threads, cached on disk where it is large.

What each file becomes: its first frame, turned as its EXIF orientation says; 16-bit grey by its high
byte; transparent parts on white; cropped around the centre to the aspect of the wanted size, then
resized with an antialiased bilinear filter (the short side fits, the aspect ratio is kept).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedmt.data.cache import Pixels, gib, map_cached, write_cached
from fedmt.data.imageset import ImageOptions
from fedmt.errors import FedmtError

CHUNK = 256
"""Files decoded at a time: enough to keep every core busy, little beside `memory_limit`."""

DECODING = "1"
"""Part of the cache's key; to be raised when files are decoded differently from before."""


def read_images(paths: Sequence[Path], where: Sequence[str], options: ImageOptions) -> Tensor:
    """The files `paths` as uint8 [N, C, H, W]; `where[i]` is the place that named `paths[i]`.

    Above `options.memory_limit` bytes the decoded set is kept in `options.cache` and memory-mapped;
    the next call with the same, unchanged files maps it again without decoding.
    """
    if not paths:
        raise FedmtError("No images to read.")
    stats = [_stat(path, place) for path, place in zip(paths, where, strict=True)]
    cached = None
    if options.cache is not None:
        cached = options.cache / f"images-{_key(paths, stats, options)}.npy"
        images = map_cached(cached)
        if images is not None and len(images) == len(paths):
            return images
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        channels = options.channels or (3 if any(pool.map(_has_colour, paths, where)) else 1)
        first = _decode(paths[0], where[0], options.size, channels)
        shape = (len(paths), *first.shape)
        chunks = _chunks(pool, paths, where, options.size, shape)
        size = math.prod(shape)
        if size <= options.memory_limit:
            pixels = np.empty(shape, dtype=np.uint8)
            for start, chunk in chunks:
                pixels[start : start + len(chunk)] = chunk
            return torch.from_numpy(pixels)
        if cached is None:
            raise FedmtError(
                f"{where[0]}: {len(paths)} images of {shape[1:]} need {gib(size)} decoded, more than the "
                f"memory limit of {gib(options.memory_limit)}; set a cache folder, a smaller images.size "
                "or a higher limit."
            )
        write_cached(cached, (chunk for _, chunk in chunks), shape)
    images = map_cached(cached)
    if images is None:
        raise FedmtError(f"{cached}: the cached images cannot be read back; set another cache folder.")
    return images


def read_image(path: Path, where: str, size: tuple[int, int] | None, channels: int) -> Pixels:
    """One file as uint8 [channels, H, W], decoded as `read_images` decodes every file."""
    _stat(path, where)
    return _decode(path, where, size, channels)


def _stat(path: Path, where: str) -> os.stat_result:
    """Before anything is decoded, so that a missing file at the end is not found after an hour."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else _reason(error)
        raise FedmtError(f"{where}: cannot read image '{path}': {reason}.") from None
    if not path.is_file():
        raise FedmtError(f"{where}: cannot read image '{path}': it is not a file.")
    if found.st_size == 0:
        raise FedmtError(f"{where}: image '{path}' is empty (0 bytes); copy it again or remove it.")
    return found


def _key(paths: Sequence[Path], stats: Sequence[os.stat_result], options: ImageOptions) -> str:
    digest = hashlib.sha256(repr((DECODING, options.size, options.channels)).encode())
    for path, stat in zip(paths, stats, strict=True):
        digest.update(repr((os.path.abspath(path), stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()[:32]


def _has_colour(path: Path, where: str) -> bool:
    """From the header alone. A palette counts as colour."""
    with _readable(path, where), Image.open(path) as image:
        return image.mode not in ("1", "L", "LA", "La", "F") and not image.mode.startswith("I")


def _chunks(
    pool: ThreadPoolExecutor,
    paths: Sequence[Path],
    where: Sequence[str],
    size: tuple[int, int] | None,
    shape: tuple[int, ...],
) -> Iterator[tuple[int, Pixels]]:
    """(start, uint8 [n, C, H, W]) of consecutive files, each of them of `shape[1:]`."""

    def decode(i: int) -> Pixels:
        pixels = _decode(paths[i], where[i], size, shape[1])
        if pixels.shape != shape[1:]:
            raise FedmtError(
                f"{where[i]}: image '{paths[i]}' is {pixels.shape[2]} x {pixels.shape[1]} (width x height), "
                f"but '{paths[0]}' is {shape[3]} x {shape[2]}; set images.size to bring them to one size."
            )
        return pixels

    for start in range(0, len(paths), CHUNK):
        yield start, np.stack(list(pool.map(decode, range(start, min(start + CHUNK, len(paths))))))


def _decode(path: Path, where: str, size: tuple[int, int] | None, channels: int) -> Pixels:
    """One file as uint8 [channels, H, W]."""
    with _readable(path, where), Image.open(path) as image:
        if size is not None:
            # A large JPEG is decoded at a half, a quarter or an eighth, never below twice the wanted size.
            image.draft(None, (2 * max(size), 2 * max(size)))
        return picture_pixels(image, size, channels)


def picture_pixels(image: Image.Image, size: tuple[int, int] | None, channels: int) -> Pixels:
    """An opened image as uint8 [channels, H, W]."""
    picture = _eight_bit(ImageOps.exif_transpose(image))
    picture = picture.convert("L" if channels == 1 else "RGB")
    if size is not None and (picture.height, picture.width) != size:
        picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)
    pixels: Pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _eight_bit(image: Image.Image) -> Image.Image:
    """`image` in a mode that converts to L and RGB without surprises: no alpha, 8 bits a channel."""
    if image.mode == "F":
        raise ValueError("it holds floating-point values; save it with 8 or 16 bits a channel")
    if image.mode.startswith("I"):
        # Pillow's own conversion clips every value above 255 instead of scaling.
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("it holds values outside 0 to 65535; save it with 8 or 16 bits a channel")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return image


@contextmanager
def _readable(path: Path, where: str) -> Iterator[None]:
    """Turns whatever Pillow raises over one file into the error that names the file and its place."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise FedmtError(
            f"{where}: image '{path}' has more pixels than is safe to decode; make it smaller or remove it."
        ) from None
    except Exception as error:  # a damaged file makes Pillow's decoders raise nearly anything
        raise FedmtError(
            f"{where}: cannot read image '{path}': {_reason(error)}. Copy it again, convert it or remove it."
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format, or its beginning is damaged"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text or type(error).__name__).rstrip(".")
