"""What `fedmt init` learns from some images: their sizes and color, and the table it proposes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from PIL import Image
from torch import Tensor

from fedmt.inputs.images.dicom import is_dicom, read_header, require_pydicom

SAMPLED = 20
"""The number of images of a center that are inspected."""

LARGEST = 224
"""The largest size that is proposed."""

SMALL = 48
"""Images smaller than this get a small network."""


@dataclass(frozen=True)
class Seen:
    """sizes: (height, width) of some images. color: whether any of them has color."""

    sizes: tuple[tuple[int, int], ...] = ()
    color: bool = False


NOTHING_SEEN = Seen()


def look_at_images(images: Iterable[Path]) -> Seen:
    """Inspects some files. A file that cannot be read is skipped."""
    files = list(images)
    sizes, color = [], False
    for path in files[:: max(1, len(files) // SAMPLED)][:SAMPLED]:
        if is_dicom(path):
            require_pydicom(path, str(path.parent))
        try:
            if is_dicom(path):
                header = read_header(path)
                sizes.append((header.height, header.width))
                color |= header.color
                continue
            with Image.open(path) as image:
                sizes.append((image.height, image.width))
                color |= image.mode not in ("1", "L", "LA", "La", "F") and not image.mode.startswith("I")
        except Exception:  # `fedmt check` names damaged files, with the place they were named at
            continue
    return Seen(tuple(sizes), color)


def look_at_array(images: Tensor) -> Seen:
    """The same for uint8 [N, channels, height, width]."""
    channels, height, width = images.shape[1:]
    return Seen(((height, width),), channels == 3)


def images_table(seen: Sequence[Seen]) -> str:
    """The config's table [images] for what was found at all centers."""
    sizes = [size for one in seen for size in one.sizes]
    channels = 3 if any(one.color for one in seen) else 1
    if not sizes:
        return (
            "# No image could be read. Set the size and the number of channels for all images:\n"
            "[images]\nsize = 64\nchannels = 3"
        )
    height, width = proposed_size(sizes)
    same = len(set(sizes)) == 1
    found = f"are {sizes[0][0]} x {sizes[0][1]}" if same else "differ in size"
    size = str(height) if height == width else f"[{height}, {width}]"
    return (
        f"# Every image is cropped and resized to this size. Those that were looked at {found}.\n"
        f"[images]\nsize = {size}   # or [height, width]\nchannels = {channels}   # 1: gray, 3: color"
    )


def are_small(seen: Sequence[Seen]) -> bool:
    sizes = [size for one in seen for size in one.sizes]
    return bool(sizes) and max(proposed_size(sizes)) < SMALL


def proposed_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(height, width): the common size if all agree and are not large, or else a square of their
    short side."""
    if len(set(sizes)) == 1 and max(sizes[0]) <= LARGEST:
        return sizes[0]
    short = int(median(min(size) for size in sizes))
    side = LARGEST if short >= LARGEST else max(32, short // 32 * 32)
    return side, side
