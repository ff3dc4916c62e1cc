"""Converts a user's images in memory to fedmt's stored form: uint8 [N, channels, height, width]."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.inputs.arrays import as_tensor, count_not_finite
from fedmt.inputs.images.cache import Pixels
from fedmt.inputs.images.decoding import has_color, picture_pixels

EXPECTED = "[N, H, W, C], [N, C, H, W] or [N, H, W], with C 1 (gray) or 3 (RGB)"

ROUNDING = 1e-4
"""How far a value may be outside [0, 1], because a resized image may overshoot by rounding."""

CHUNK = 1 << 24
"""Number of values that are scaled at a time, so that a large array needs no second float copy."""


def stored_images(given: Any, where: str) -> Tensor:
    """Images as uint8 [N, C, H, W], from uint8 or from floats in [0, 1], in any of three layouts.

    >>> import numpy as np
    >>> stored_images(np.zeros((5, 28, 28, 3), dtype=np.uint8), "reference").shape
    torch.Size([5, 3, 28, 28])
    """
    if isinstance(given, list | tuple) and given and all(isinstance(item, Image.Image) for item in given):
        channels = 3 if any(map(has_color, given)) else 1
        given = [_pixels(item, channels, f"{where}, x[{i}]") for i, item in enumerate(given)]
    return as_uint8(_channels_first(as_tensor(given, where), where), where).contiguous()


def as_uint8(images: Tensor, where: str) -> Tensor:
    """uint8 unchanged, and floats in [0, 1] rounded to the nearest of the 256 values."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise FedmtError(
            f"{where}: images of dtype {_name(images.dtype)} and shape {tuple(images.shape)}; expected "
            "uint8, 0 to 255, or floats in [0, 1]."
        )
    broken = count_not_finite(images)
    if broken:
        raise FedmtError(
            f"{where}: {broken:,} of the {images.numel():,} values of its images are NaN or infinite; "
            "expected floats in [0, 1]."
        )
    if images.numel() == 0:
        return images.to(torch.uint8)
    low, high = images.min().item(), images.max().item()
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise FedmtError(
            f"{where}: images of dtype {_name(images.dtype)} with values from {low:.4g} to {high:.4g}; "
            "expected floats in [0, 1], or uint8, 0 to 255. Undo a normalization first: fedmt normalizes by "
            "itself."
        )
    result = torch.empty(images.shape, dtype=torch.uint8)
    step = max(1, CHUNK // max(1, images[0].numel()))
    for start in range(0, len(images), step):
        part = images[start : start + step].float().mul(255).round_().clamp_(0, 255)
        result[start : start + step] = part.to(torch.uint8)
    return result


def _channels_first(images: Tensor, where: str) -> Tensor:
    shape = tuple(images.shape)
    if len(shape) == 3:
        return images[:, None]
    first, last = len(shape) == 4 and shape[1] in (1, 3), len(shape) == 4 and shape[3] in (1, 3)
    if first and last:
        raise FedmtError(
            f"{where}: images of shape {shape} could be [N, H, W, C] or [N, C, H, W]; remove the channel "
            "axis of grayscale images, giving [N, H, W], or make the images larger."
        )
    if not first and not last:
        raise FedmtError(
            f"{where}: images of shape {shape} and dtype {_name(images.dtype)}; expected {EXPECTED}."
        )
    return images if first else images.permute(0, 3, 1, 2)


def _pixels(picture: Image.Image, channels: int, where: str) -> Pixels:
    """A picture as uint8 [channels, H, W], converted in the same way as a file and as in `Model.predict`."""
    try:
        return picture_pixels(picture, None, channels)
    except (OSError, ValueError) as error:
        raise FedmtError(f"{where}: the picture cannot be read: {error}.") from None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
