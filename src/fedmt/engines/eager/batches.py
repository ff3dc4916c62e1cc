"""Batches of samples for passes without gradients: how large they are, and on a GPU of how few sizes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedmt.inputs import Input

PLACES = 1 << 19
"""A batch has about so many places of its samples, and eight times as many on a GPU."""

SMALLEST = 16
"""Number of samples of a batch, if they are very large."""


def batch_size(input: Input, device: torch.device) -> int:
    return max(SMALLEST, PLACES * (8 if device.type == "cuda" else 1) // input.extent)


def split(samples: Tensor, size: int) -> tuple[Tensor, ...]:
    """All samples, in batches of about equal size, since a small last one would have statistics unlike the
    others."""
    return samples.tensor_split(math.ceil(len(samples) / size))


def split_evenly(samples: Tensor, size: int) -> tuple[Tensor, ...]:
    """Samples [n, ...] in batches of one size, at most `size`.

    Up to one eighth of them, evenly spread, is left out, so that centers of many sizes have batches of few:
    on a GPU, each new size costs the first use of all kernels.
    """
    kept = len(samples) - len(samples) % (1 << max(0, len(samples).bit_length() - 4))
    if kept < len(samples):
        index = torch.arange(kept, device=samples.device) * len(samples) // kept
        samples = samples[index]
    return samples.tensor_split(1 << (-(-kept // size) - 1).bit_length())


def padded(batch: Tensor, size: int) -> Tensor:
    """A batch [n, ...] filled up with copies of its first sample.

    To a power of two, from an eighth of `size` on and at most to `size`: four lengths in all.
    """
    length = min(size, max(SMALLEST, size // 8, 1 << (len(batch) - 1).bit_length()))
    if len(batch) >= length:
        return batch
    return torch.cat([batch, batch[:1].expand(length - len(batch), *batch.shape[1:])])
