"""Image files to one uint8 tensor: decoded by Pillow or pydicom in threads, and cached on disk if it is
large.

What each file becomes: its first frame, rotated by its EXIF orientation; the high byte of 16-bit grayscale;
DICOM files through their window (dicom.py); transparent parts on white; cropped around the center to the
aspect of the wanted size, then resized with an antialiased bilinear filter (the short side fits, the aspect
ratio is kept).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedmt.core.errors import FedmtError, together
from fedmt.core.progress import tell
from fedmt.inputs.images.cache import Pixels, gib, map_cached, write_cached
from fedmt.inputs.images.dicom import is_dicom, read_dicom, read_header, require_pydicom
from fedmt.inputs.images.shaping import AS_STORED, ImageOptions

CHUNK = 256
"""Number of files decoded at a time: enough to keep every core busy, and small compared with
`memory_limit`."""

LOOKED_AT = 20
"""Number of files per source whose 16-bit values are checked. A source's images come from the same
machine."""

FEW_GRAYS = 64
"""This many gray levels or fewer deserve a note: 14 of 16 bits, or less."""

DECODING = "1"
"""Part of the cache's key. Raise it when files are decoded differently from before."""


def read_images(paths: Sequence[Path], where: Sequence[str], options: ImageOptions) -> Tensor:
    """The files `paths` as uint8 [N, C, H, W]; `where[i]` is the place that named `paths[i]`.

    Above `options.memory_limit` bytes the decoded set is kept in `options.cache` and memory-mapped; the next
    call with the same, unchanged files maps it again without decoding. All files that cannot be read are
    reported in one error. Missing or empty files are reported before any file is decoded.
    """
    if not paths:
        raise FedmtError("No images to read.")
    stats = _stats(paths, where)
    for path, place in zip(paths, where, strict=True):
        if is_dicom(path):
            require_pydicom(path, place)  # checked once, instead of an error for every file
            break
    cached = None
    if options.cache is not None:
        cached = options.cache / f"images-{_key(paths, stats, options)}.npy"
        images = map_cached(cached)
        if images is not None and len(images) == len(paths):
            return images
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        channels = options.channels or (3 if any(pool.map(_has_color, paths)) else 1)
        options = replace(options, channels=channels)
        first, pixels = _first(paths, where, options)
        shape = (len(paths), *pixels.shape)
        chunks = _chunks(pool, paths, where, options, shape, first)
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


def read_image(path: Path, where: str, options: ImageOptions) -> Pixels:
    """One file as uint8 [options.channels, H, W], decoded as `read_images` decodes every file."""
    _stat(path, where)
    return _decode(path, where, options)


def depth_notes(paths: Sequence[Path], where: str, options: ImageOptions = AS_STORED) -> tuple[str, ...]:
    """Notes on grayscale images that use so little of their range that few of 256 gray levels are left.

    Some 16-bit images use only the lower bits, as exported 12-bit scans do. Their high byte then holds almost
    nothing. Only whoever exported them knows which scaling is meant.
    """
    some = paths[:: max(1, len(paths) // LOOKED_AT)][:LOOKED_AT]
    dicom = [path for path in some if is_dicom(path)]
    return (
        *_sixteen_bit_notes([path for path in some if path not in dicom], where),
        *_dicom_notes(dicom, where, options),
    )


def _dicom_notes(paths: Sequence[Path], where: str, options: ImageOptions) -> tuple[str, ...]:
    """A grayscale file without a window is scaled by the bits that it could use, although it may use only few
    of them."""
    pictures = [np.asarray(read_dicom(path, where, options.window)) for path in paths]
    grays = [int(picture.max()) - int(picture.min()) + 1 for picture in pictures if picture.ndim == 2]
    if max(grays, default=256) > FEW_GRAYS:
        return ()
    return (
        f"{where}: its DICOM files span only {max(grays)} of 256 gray levels ({len(grays)} files checked). "
        "Set the window that shows what matters: [images] window = [center, width].",
    )


def _sixteen_bit_notes(paths: Sequence[Path], where: str) -> tuple[str, ...]:
    highest = [_highest(path) for path in paths]
    deep = [value for value in highest if value is not None]
    grays = max(deep, default=65535) // 256 + 1
    if grays > FEW_GRAYS:
        return ()
    return (
        f"{where}: its 16-bit images only use values up to {max(deep)} ({len(deep)} files checked), which "
        f"leaves {grays} of 256 gray levels. Scale them to 65535, all by the same factor.",
    )


def _highest(path: Path) -> int | None:
    """The highest value of a 16-bit grayscale image. None for others, which are not decoded for this."""
    try:
        with Image.open(path) as image:
            return int(np.asarray(image).max()) if image.mode.startswith("I") else None
    except Exception:  # as in `_readable`
        return None


def _stats(paths: Sequence[Path], where: Sequence[str]) -> list[os.stat_result]:
    """Checks all files before anything is decoded, so that a missing file at the end is not found after an
    hour."""
    stats, problems = [], []
    for path, place in zip(paths, where, strict=True):
        try:
            stats.append(_stat(path, place))
        except FedmtError as error:
            problems.append(str(error))
    if problems:
        raise together(problems)
    return stats


def _stat(path: Path, where: str) -> os.stat_result:
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
    asked = (DECODING, options.size, options.channels)
    # Only if one is set, so that caches from before there were windows are still found.
    digest = hashlib.sha256(repr(asked if options.window is None else (*asked, options.window)).encode())
    for path, stat in zip(paths, stats, strict=True):
        digest.update(repr((os.path.abspath(path), stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()[:32]


def _has_color(path: Path) -> bool:
    """Read from the header alone. A palette counts as color. A file that cannot be read is reported when it
    is decoded."""
    try:
        if is_dicom(path):
            return read_header(path).color
        with Image.open(path) as image:
            return has_color(image)
    except Exception:  # as in `_readable`
        return False


def has_color(image: Image.Image) -> bool:
    """By its mode alone."""
    return image.mode not in ("1", "L", "LA", "La", "F") and not image.mode.startswith("I")


def _first(paths: Sequence[Path], where: Sequence[str], options: ImageOptions) -> tuple[Path, Pixels]:
    """The first file that can be read, and its pixels. If no size is set, all files must have its size."""
    problems = []
    for path, place in zip(paths, where, strict=True):
        try:
            return path, _decode(path, place, options)
        except FedmtError as error:
            problems.append(str(error))
    raise together(problems)


def _chunks(
    pool: ThreadPoolExecutor,
    paths: Sequence[Path],
    where: Sequence[str],
    options: ImageOptions,
    shape: tuple[int, ...],
    first: Path,
) -> Iterator[tuple[int, Pixels]]:
    """(start, uint8 [n, C, H, W]) of consecutive files, each of them of `shape[1:]`, the size of `first`."""

    def decode(i: int) -> Pixels | FedmtError:
        try:
            return _decode(paths[i], where[i], options)
        except FedmtError as error:
            return error

    def other_size(i: int, pixels: Pixels) -> str:
        return (
            f"{where[i]}: image '{paths[i]}' is {pixels.shape[2]} x {pixels.shape[1]} (width x height), but "
            f"'{first}' is {shape[3]} x {shape[2]}; set images.size to convert them to one size."
        )

    problems: list[str] = []
    for start in range(0, len(paths), CHUNK):
        chunk = []
        for i, found in enumerate(pool.map(decode, range(start, min(start + CHUNK, len(paths)))), start):
            if isinstance(found, FedmtError):
                problems.append(str(found))
            elif found.shape != shape[1:]:
                # One error is enough: the others would fill the screen and take as long as reading the set.
                raise together([*problems, other_size(i, found)])
            else:
                chunk.append(found)
        tell("Decoding images", min(start + CHUNK, len(paths)), len(paths))
        if not problems:
            yield start, np.stack(chunk)
    if problems:
        raise together(problems)


def _decode(path: Path, where: str, options: ImageOptions) -> Pixels:
    """One file as uint8 [options.channels, H, W]."""
    size, channels = options.size, options.channels
    assert channels is not None
    if is_dicom(path):
        return picture_pixels(read_dicom(path, where, options.window), size, channels)
    with _readable(path, where), Image.open(path) as image:
        if size is not None:
            # A large JPEG is decoded at a half, a quarter or an eighth of its size, never below twice the
            # wanted size.
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
    """`image` in a mode that converts to L and RGB without surprises: no alpha, 8 bits per channel."""
    if image.mode == "F":
        raise ValueError("it holds floating-point values; save it with 8 or 16 bits per channel")
    if image.mode.startswith("I"):
        # Pillow's own conversion clips every value above 255 instead of scaling.
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("it holds values outside 0 to 65535; save it with 8 or 16 bits per channel")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return image


@contextmanager
def _readable(path: Path, where: str) -> Iterator[None]:
    """Turns whatever Pillow raises for a file into the error that names the file and its place."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise FedmtError(
            f"{where}: image '{path}' has more pixels than is safe to decode; make it smaller or remove it."
        ) from None
    except Exception as error:  # a damaged file can make Pillow's decoders raise almost any exception
        raise FedmtError(
            f"{where}: cannot read image '{path}': {_reason(error)}. Copy it again, convert it or remove it."
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format, or its beginning is damaged"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text or type(error).__name__).rstrip(".")
