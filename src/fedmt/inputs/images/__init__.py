"""Images: the room of everything that knows what a pixel is.

shaping.py   how images are converted to one size and number of channels
decoding.py  image files to one uint8 tensor; dicom.py, what Pillow does not read; cache.py, for sets that do
             not fit in memory
augment.py   weak and strong views
arrays.py    arrays in memory to the same tensor
asking.py    what a trained model is asked about: arrays, pictures, files
looking.py   what `fedmt init` finds out about images before it writes a config
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.section import ConfigPath, Section
from fedmt.inputs.base import Batch, Input, Item, Views
from fedmt.inputs.images import asking
from fedmt.inputs.images.arrays import stored_images
from fedmt.inputs.images.augment import Augmentation
from fedmt.inputs.images.copies import make_copies
from fedmt.inputs.images.dicom import Window
from fedmt.inputs.images.shaping import ImageOptions

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

CHECKED_SIZE = 32
"""Side of the square to which a center's images are resized if they are only checked."""

WindowCenter = Annotated[float, Field(allow_inf_nan=False)]
WindowWidth = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class ImageSpec(Section):
    """How images are read."""

    size: int | tuple[int, int] | None = None
    """Side of the square, or `[height, width]`, that every image is cropped and resized to. If it is not set,
    images stay as stored and must all have one size."""
    channels: Literal[1, 3] | None = None
    """1 for grayscale, 3 for color. If it is not set, images stay as stored."""
    cache: ConfigPath | None = None
    """Folder for decoded images that do not fit in memory and for features of frozen networks. If it is not
    set, it is `~/.cache/fedmt`."""
    memory_limit_gib: Annotated[float, Field(gt=0)] = 2.0
    """Memory in GiB that the images of one source may take. Larger sets are memory-mapped from `cache`."""
    window: tuple[WindowCenter, WindowWidth] | None = None
    """`[center, width]` of the window for grayscale DICOM files, instead of each file's own. Set it if only
    some centers' files have a window."""

    def options(self) -> ImageOptions:
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        cache = self.cache or Path.home() / ".cache" / "fedmt"
        return ImageOptions(size, self.channels, cache, int(self.memory_limit_gib * 2**30), self.window)


@dataclass(frozen=True)
class Images(Input):
    """Stored as uint8 [N, channels, height, width], channels 1 (gray) or 3 (RGB); networks see [0, 1].

    window: the window of grayscale DICOM files, in training and in use; None for each file's own.
    """

    name: ClassVar[str] = "images"
    word: ClassVar[str] = "image"
    shaped_by: ClassVar[str] = "images.size or images.channels"
    views: ClassVar[type[Views]] = Augmentation
    options: ClassVar[type[Section]] = ImageSpec
    dtype: ClassVar[torch.dtype] = torch.uint8
    memory_format: ClassVar[torch.memory_format] = torch.channels_last

    shape: tuple[int, int, int]
    window: Window | None = None

    @classmethod
    def of(cls, samples: Tensor, where: str) -> Images:
        if samples.dtype != torch.uint8 or samples.dim() != 4 or samples.shape[1] not in (1, 3):
            raise FedmtError(
                f"{where}: images must be uint8 [N, 1 or 3, height, width], "
                f"got {samples.dtype} {tuple(samples.shape)}."
            )
        channels, height, width = samples.shape[1:]
        return cls((channels, height, width))

    @classmethod
    def stored(cls, given: Any, where: str) -> Tensor:
        return stored_images(given, where)

    def mismatch(self, other: Input) -> str:
        return f"{super().mismatch(other)}; set images.size and images.channels so that all agree"

    @property
    def extent(self) -> int:
        return self.shape[1] * self.shape[2]

    @classmethod
    def scaled_down(cls, options: Section) -> Mapping[str, Any]:
        assert isinstance(options, ImageSpec)
        size = options.size
        if size is None:
            return {}
        return {"size": min(size, 32) if isinstance(size, int) else [min(s, 32) for s in size]}

    @classmethod
    def without_reference(cls, options: Section) -> ImageSpec:
        # Small, because the images are only checked. If no size is set, it is that of the reference center.
        assert isinstance(options, ImageSpec)
        return options.model_copy(update={"size": CHECKED_SIZE, "cache": None})

    def reading(self, cache: Path) -> ImageSpec:
        channels, height, width = self.shape
        # Always through the cache, because a center's process may be started again for every message.
        options = {"size": (height, width), "channels": channels, "cache": cache, "memory_limit_gib": 1e-9}
        return ImageSpec.model_validate({**options, "window": self.window})

    def as_read(self, options: Section) -> Images:
        return replace(self, window=options.window) if isinstance(options, ImageSpec) else self

    def plain(self, samples: Tensor) -> Tensor:
        return samples.float().div_(255)

    def statistics(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return pixel_statistics(samples)

    def pretrained_statistics(
        self, published: tuple[Sequence[float], Sequence[float]] | None = None
    ) -> tuple[Tensor, Tensor]:
        mean, std = map(list, published or (IMAGENET_MEAN, IMAGENET_STD))
        if self.shape[0] == 1:
            mean, std = [sum(mean) / 3], [sum(std) / 3]
        return per_channel(mean), per_channel(std)

    @property
    def network_arguments(self) -> Mapping[str, int]:
        return {"channels": self.shape[0]}

    def copies(self, samples: Tensor, chosen: Tensor, views: Views, rng: np.random.Generator) -> Tensor:
        assert isinstance(views, Augmentation)
        return make_copies(samples, chosen, views.flip, rng)

    def preview(self, sample: Tensor) -> Mapping[str, str]:
        """A PNG in a data URL."""
        pixels = sample.cpu().numpy()
        pixels = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "png")
        return {"image": "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()}

    def signature(self) -> dict[str, Any]:
        return {
            "type": "uint8",
            "channels": "gray" if self.shape[0] == 1 else "RGB",
            "shape": ["batch", *self.shape],
            "preparation": "cropped around the center to the aspect, then resized (bilinear)",
            **({"window": list(self.window)} if self.window is not None else {}),
        }

    def example(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(0, 256, (count, *self.shape), generator=generator).to(torch.uint8)

    def batches(self, given: Any) -> Iterator[Tensor]:
        return asking.batches(given, self.shape, self.window)

    def find(self, paths: Sequence[Path], column: str | None, notes: list[str]) -> list[Item]:
        return asking.find_files(paths, column or "image", notes)

    def read(self, items: Sequence[Item]) -> Iterator[Batch]:
        return asking.read_files(items, self.shape, self.window)


def pixel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, in [0, 1] units, of uint8 [N, C, H, W]: [1, C, 1, 1]."""
    # In chunks, because a float64 copy of a whole center could be eight times its size.
    count, total, squares = 0, torch.zeros(images.shape[1]), torch.zeros(images.shape[1])
    total, squares = total.double(), squares.double()
    for chunk in images.split(max(1, (1 << 24) // math.prod(images.shape[1:]))):
        values = chunk.double() / 255
        count += values.numel() // values.shape[1]
        total += values.sum((0, 2, 3)).cpu()
        squares += values.square().sum((0, 2, 3)).cpu()
    mean = total / count
    # A constant channel has deviation 0. Dividing by 1e-3 then gives zeros, not NaNs.
    std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return per_channel(mean.tolist()), per_channel(std.tolist())


def per_channel(values: Sequence[float]) -> Tensor:
    """One value for each channel, broadcastable to [B, C, H, W]."""
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1)
