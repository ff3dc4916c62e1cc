"""Augmented copies of images, in the stored form: what fills up small classes (`benchmark.augment_to`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmt.inputs.images.augment import WEAK_NUMBERS, Augmentation, strong, weak

OPERATIONS = ("rotate", "shear_x", "shear_y", "brightness", "color", "contrast", "sharpness")
STRENGTH = 0.3
"""The operations for a copy in addition to flip and crop. One is applied mildly, so that the copy still shows
its class."""

BATCH = 128
"""Number of copies made at a time. A view is made in float32 and needs several of them in memory."""


def make_copies(images: Tensor, chosen: Tensor, flip: bool, rng: np.random.Generator) -> Tensor:
    """Augmented copies of images [N, C, H, W] at `chosen` [m]: uint8 [m, C, H, W].

    flip: whether mirror images are equivalent.
    """
    options = Augmentation(flip=flip, operations=OPERATIONS, count=1, strength=STRENGTH, cutout=0)
    numbers = WEAK_NUMBERS + options.strong_numbers
    uniforms = torch.from_numpy(rng.random((len(chosen), numbers), np.float32))
    copies = torch.empty((len(chosen), *images.shape[1:]), dtype=torch.uint8)
    for start in range(0, len(chosen), BATCH):
        end = start + BATCH
        batch = weak(images[chosen[start:end]], uniforms[start:end, :WEAK_NUMBERS], options)
        batch = strong(batch, uniforms[start:end, WEAK_NUMBERS:], options)
        copies[start:end] = (batch * 255).round_().clamp_(0, 255).to(torch.uint8)
    return copies
