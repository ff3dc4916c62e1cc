"""Weak and strong views of a batch of images: batched, on the images' device.

Randomness is data: a view is a pure function of the images and of a tensor of uniform numbers, a
row for each sample. So a method draws a whole round's numbers at once, every engine and device
makes the same views from them, and nothing depends on timing.

Weak: horizontal flip and a crop out of the reflected border. Strong: RandAugment, with operations chosen
separately for every sample, then Cutout. Grayscale and color, any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.inputs.base import Views

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
PHOTOMETRIC = (
    "autocontrast", "brightness", "color", "contrast", "equalize", "posterize", "sharpness", "solarize",
)  # fmt: skip
OPERATIONS = ("identity", *GEOMETRIC, *PHOTOMETRIC)

WEAK_NUMBERS = 3
"""Uniform numbers per sample that `weak` uses: flip, vertical shift, horizontal shift."""


@dataclass(frozen=True)
class Augmentation(Views):
    """The views of images."""

    flip: bool = True
    """Whether views may be mirrored. Set it to false if a mirror image means something different, as with
    digits, letters, or left and right organs."""
    crop: float = 0.125
    """Largest shift of the weak view, as a share of the image's size."""
    operations: tuple[str, ...] = OPERATIONS
    """Operations that the strong view (RandAugment) chooses from. Remove those that change the class, such as
    color operations if the color is the finding."""
    count: int = 2
    """Number of operations applied to each sample in a strong view."""
    strength: float = 1.0
    """Strength of the operations, from none to full."""
    cutout: float = 0.5
    """Largest side of the square that a strong view cuts out, as a share of the image's size. Lower it if
    findings are small."""
    cutmix: float = 0.0
    """Share of the mixed views in which a rectangle of the partner covers the image (CutMix). The others are
    a blend of the two. Try 0.5 in long runs from random weights."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.operations if name not in OPERATIONS]
        if unknown:
            raise FedmtError(
                f"augmentation.operations: no operation '{unknown[0]}'.{nearest(unknown[0], OPERATIONS)} "
                f"Known: {listed(OPERATIONS, 20)}."
            )
        if not self.operations:
            raise FedmtError("augmentation.operations: empty; use ['identity'] for no operation.")
        if self.count < 0:
            raise FedmtError(f"augmentation.count: {self.count} given, expected at least 0.")
        for name in ("crop", "strength", "cutout", "cutmix"):
            if not 0 <= getattr(self, name) <= 1:
                raise FedmtError(f"augmentation.{name}: {getattr(self, name)} given, expected 0 to 1.")

    @property
    def weak_numbers(self) -> int:
        """Flip, vertical shift, horizontal shift."""
        return WEAK_NUMBERS

    @property
    def strong_numbers(self) -> int:
        """Three for each operation, three for Cutout."""
        return 3 * self.count + 3

    @property
    def mix_numbers(self) -> int:
        """Blend or rectangle, and the position of the rectangle."""
        return 3 if self.cutmix > 0 else 0

    def weak(self, samples: Tensor, uniforms: Tensor) -> Tensor:
        return weak(samples, uniforms, self)

    def strong(self, views: Tensor, samples: Tensor, uniforms: Tensor) -> Tensor:
        return strong(views, uniforms, self)

    def mixed(self, views: Tensor, partners: Tensor, share: Tensor, uniforms: Tensor | None) -> Tensor:
        blend = super().mixed(views, partners, share, uniforms)
        if uniforms is None:
            return blend
        kind, top, left = uniforms[..., None, None, None].unbind(2)
        return torch.where(kind < self.cutmix, _covered(views, partners, share, top, left), blend)


def weak(images: Tensor, uniforms: Tensor, options: Augmentation) -> Tensor:
    """Flip and reflected crop: uint8 [B, C, H, W] and uniforms [B, 3] to float32 [B, C, H, W] in [0, 1]."""
    height, width = images.shape[2:]
    rows = _reflected(height, uniforms[:, 1], options.crop)
    columns = _reflected(width, uniforms[:, 2], options.crop)
    if options.flip:
        columns = torch.where(uniforms[:, :1] < 0.5, columns, width - 1 - columns)
    # One gather of bytes. The pixels become floats only afterwards.
    pixels = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    pixels = pixels[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, pixels).view_as(images).to(torch.float32).div_(255)


def strong(images: Tensor, uniforms: Tensor, options: Augmentation) -> Tensor:
    """RandAugment and Cutout: float [B, C, H, W] in [0, 1] and uniforms [B, strong_numbers] to such images.

    Each of `count` operations is chosen for each sample. The pixel-wise operations come first, then all
    geometric ones as one warp (they commute except for the black border that a warp adds), so an image is
    resampled once, not `count` times.
    """
    batch = len(images)
    transform = torch.eye(3, device=images.device).expand(batch, 3, 3)
    for slot in range(options.count):
        choice, magnitude, sign = uniforms[:, 3 * slot : 3 * slot + 3].unbind(1)
        chosen = (choice * len(options.operations)).long().clamp_max(len(options.operations) - 1)
        magnitude = magnitude * options.strength
        signed = torch.where(sign < 0.5, -magnitude, magnitude)
        images = _pixelwise(images, chosen, magnitude, signed, options.operations)
        transform = _warp(chosen, signed, options.operations, images.shape[2] / images.shape[3]) @ transform
    if any(name in GEOMETRIC for name in options.operations):
        grid = _affine_grid(transform[:, :2], images)
        images = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return _cutout(images, uniforms[:, 3 * options.count :], options.cutout) if options.cutout > 0 else images


def _affine_grid(transform: Tensor, images: Tensor) -> Tensor:
    """`F.affine_grid` of the maps [B, 2, 3]: the position [B, H, W, 2] in the input of each pixel."""
    if images.device.type != "cpu":
        return F.affine_grid(transform, list(images.shape), align_corners=False)
    # torch multiplies one small matrix for each image, which takes longer on a CPU than sampling the images.
    # Written out, with each product of a row or a column computed once, the numbers are the same.
    across, down, shift = transform[..., None].unbind(2)
    rows, columns = map(_positions, images.shape[2:])
    grid = (across * columns)[:, :, None] + (down * rows)[..., None]
    return grid.add_(shift[..., None]).permute(0, 2, 3, 1)


@cache
def _positions(size: int) -> Tensor:
    """Positions of the pixels along an axis, in [-1, 1], as in `F.affine_grid`."""
    same = torch.eye(3)[None, :2]
    return F.affine_grid(same, [1, 1, 1, size], align_corners=False)[0, 0, :, 0].clone()


def _reflected(size: int, uniforms: Tensor, share: float) -> Tensor:
    """Source positions [B, size] along an axis that is shifted by up to `share` of its size and reflected at
    the ends."""
    reach = min(round(size * share), size - 1)
    shift = (uniforms * (2 * reach + 1)).long().clamp_max(2 * reach) - reach
    position = (torch.arange(size, device=uniforms.device) + shift[:, None]).abs()
    return (size - 1) - ((size - 1) - position).abs()


def _warp(chosen: Tensor, signed: Tensor, operations: tuple[str, ...], aspect: float) -> Tensor:
    """The affine maps [B, 3, 3], output to input positions in [-1, 1], of the chosen operations."""

    def amount(name: str, largest: float) -> Tensor:
        if name not in operations:
            return torch.zeros_like(signed)
        return torch.where(chosen == operations.index(name), signed * largest, 0.0)

    angle = amount("rotate", math.radians(30))
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(signed), torch.ones_like(signed)
    rows = [
        [cos, -sin * aspect + amount("shear_x", 0.3) * aspect, amount("translate_x", 0.6)],
        [sin / aspect + amount("shear_y", 0.3) / aspect, cos, amount("translate_y", 0.6)],
        [zero, zero, one],
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def _pixelwise(
    x: Tensor, chosen: Tensor, magnitude: Tensor, signed: Tensor, operations: tuple[str, ...]
) -> Tensor:
    """The chosen pixel-wise operation on each sample; the others pass through."""
    used = {name: operations.index(name) for name in PHOTOMETRIC if name in operations}
    if not used:
        return x
    # Six times faster for color images, but shapes that depend on the data cannot be part of a CUDA graph.
    apply = _on_its_samples if x.device.type == "cpu" else _on_all_samples
    return apply(x, _gray(x), chosen, _column(magnitude), _column(signed), used)


def _on_its_samples(
    x: Tensor, gray: Tensor, chosen: Tensor, magnitude: Tensor, signed: Tensor, used: dict[str, int]
) -> Tensor:
    """Applies each operation only to the samples that chose it."""
    result = x.clone()
    for name, number in used.items():
        mine = (chosen == number).nonzero().flatten()
        if len(mine) == 1:
            # The sample is repeated, because some of torch's sums round differently for a batch of one, and a
            # view must not depend on the rest of its batch.
            mine = mine.expand(2)
        if len(mine):
            result[mine] = _PIXELWISE[name](x[mine], gray[mine], magnitude[mine], signed[mine])
    return result


def _on_all_samples(
    x: Tensor, gray: Tensor, chosen: Tensor, magnitude: Tensor, signed: Tensor, used: dict[str, int]
) -> Tensor:
    """Applies each operation to every sample and keeps each sample's own."""
    result = x
    for name, number in used.items():
        mine = _column(chosen == number)
        result = torch.where(mine, _PIXELWISE[name](x, gray, magnitude, signed), result)
    return result


def _column(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _gray(x: Tensor) -> Tensor:
    """Luma [B, 1, H, W] (ITU-R 601) of grayscale or color images."""
    if x.shape[1] == 1:
        return x
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _blend(base: Tensor, x: Tensor, signed: Tensor) -> Tensor:
    """From near `base` (factor 0.1) over the image (1) to beyond it (1.9), as Pillow's enhancers do."""
    return torch.lerp(base, x, 1 + 0.9 * signed).clamp_(0, 1)


def _autocontrast(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    # A constant image has no contrast to stretch, so scale 1 leaves it unchanged.
    span = high - low
    flat = span == 0
    return (x - low.masked_fill(flat, 0)).div_(span.masked_fill(flat, 1))


def _brightness(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    return (x * (1 + 0.9 * signed)).clamp_(0, 1)


def _color(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    return _blend(gray.expand_as(x), x, signed)


def _contrast(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    return _blend(gray.mean((2, 3), keepdim=True).expand_as(x), x, signed)


def _equalize(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    # A pixel's equalized value is the share of its channel's pixels that are darker, rescaled to [0, 1].
    flat = (x * 255).round().flatten(2).long()
    counts = x.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, x.new_ones(()).expand(flat.shape))
    darker = (counts.cumsum(2) - counts).gather(2, flat)
    span = darker.amax(2, keepdim=True)
    return torch.where(span > 0, darker / span.clamp_min(1), x.flatten(2)).view_as(x)


def _posterize(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    step = torch.exp2((4 * magnitude).round())
    return (x * (255 / step)).floor_().mul_(step / 255).clamp_(0, 1)


def _sharpness(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    # Created on the images' device, because a copy from the host could not be part of a CUDA graph.
    kernel = x.new_ones(3, 3)
    kernel[1, 1].fill_(5)
    kernel = kernel / 13
    channels = x.shape[1]
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    blurred = F.conv2d(padded, kernel.expand(channels, 1, 3, 3), groups=channels)
    return _blend(blurred, x, signed)


def _solarize(x: Tensor, gray: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    return torch.where(x > 1 - magnitude, 1 - x, x)


_PIXELWISE = {
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "sharpness": _sharpness,
    "solarize": _solarize,
}


def _cutout(x: Tensor, uniforms: Tensor, share: float) -> Tensor:
    """A square of up to `share` of the image, anywhere, replaced by the image's mean color."""
    height, width = x.shape[2:]
    half = uniforms[:, 2] * share * min(height, width) / 2
    rows = (torch.arange(height, device=x.device) + 0.5 - (uniforms[:, 0] * height)[:, None]).abs()
    columns = (torch.arange(width, device=x.device) + 0.5 - (uniforms[:, 1] * width)[:, None]).abs()
    inside = (rows < half[:, None])[:, None, :, None] & (columns < half[:, None])[:, None, None, :]
    return torch.where(inside, x.mean((2, 3), keepdim=True), x)


def _covered(x: Tensor, partners: Tensor, share: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """CutMix (Yun et al., 2019): a rectangle of the partner, shaped like the image, in its own place.

    All of it is inside the image, so that `share` of the image stays uncovered, up to the rounding of its
    sides.
    """
    height, width = x.shape[-2:]
    side = (1 - share).sqrt()

    def inside(size: int, start: Tensor, shape: tuple[int, int]) -> Tensor:
        length = (side * size).round()
        first = (start * (size - length + 1)).floor()
        place = torch.arange(size, device=x.device).view(shape)
        return (place >= first) & (place < first + length)

    return torch.where(inside(height, top, (-1, 1)) & inside(width, left, (1, -1)), partners, x)
