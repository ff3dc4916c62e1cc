"""Backbones, one network a file, and the classifier that federations train.

Parameter names are torchvision's, so its published weight files load. A `Classifier` is a backbone
with its input normalisation inside: pixels in [0, 1] in, wanted-space logits out.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedmt.backbones import mobilenet, resnet, small_cnn
from fedmt.backbones.base import Backbone
from fedmt.backbones.custom import Builder, custom, not_a_builder
from fedmt.backbones.weights import load_weights
from fedmt.registry import Registry

BACKBONES: Registry[Backbone | Builder] = Registry(
    "backbone",
    {**small_cnn.BACKBONES, **resnet.BACKBONES, **mobilenet.BACKBONES},
    not_a_builder,
    form="package.module:callable",
)
"""The known networks; a user's own is a function or class, called as `custom` says, or a `Backbone`."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SKIP_MAX_POOL_BELOW = 64
"""Images smaller than this keep their resolution past the ResNet stem, as in the paper's 32x32 runs."""


class Classifier(nn.Module):
    """`backbone((x - mean) / std)`: images [B, C, H, W] in [0, 1] to logits [B, K]."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.backbone((images - self.mean) / self.std)
        return logits


def build(
    name: str,
    classes: int,
    channels: int,
    image_size: tuple[int, int],
    weights: Path | None = None,
    max_pool: bool | None = None,
) -> nn.Module:
    """A backbone by name, or by a user's `package.module:callable`, from random or published weights.

    max_pool: the first max-pool of a ResNet; None skips it for images under 64 pixels.
    """
    found = BACKBONES.find(name, "model.backbone")
    known = found if isinstance(found, Backbone) else Backbone(found)
    options: dict[str, int] = {"classes": classes, "channels": channels}
    if known.pools:
        options["max_pool"] = min(image_size) >= SKIP_MAX_POOL_BELOW if max_pool is None else max_pool
    network = known.build(**options) if name in BACKBONES else custom(known.build, name, options)
    if weights is not None:
        for note in load_weights(network, weights, known.head):
            warnings.warn(note, stacklevel=2)
    return network


def pixel_statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in [0, 1] units, of uint8 [N, C, H, W]."""
    # In chunks: a float64 copy of a whole center could be eight times its size.
    count, total, squares = 0, torch.zeros(images.shape[1]), torch.zeros(images.shape[1])
    total, squares = total.double(), squares.double()
    for chunk in images.split(max(1, (1 << 24) // images[0].numel())):
        values = chunk.double() / 255
        count += values.numel() // values.shape[1]
        total += values.sum((0, 2, 3)).cpu()
        squares += values.square().sum((0, 2, 3)).cpu()
    mean = total / count
    # A constant channel has deviation 0; dividing by 1e-3 then leaves zeros, not NaNs.
    std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return mean.tolist(), std.tolist()


__all__ = [
    "BACKBONES",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Backbone",
    "Classifier",
    "build",
    "pixel_statistics",
]
