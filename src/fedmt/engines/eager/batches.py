"""Batches of samples for passes without gradients: their sizes, of which there are only a few on a GPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedmt.inputs import Input

PLACES = 1 << 19
"""A batch has about this many positions of samples, and eight times as many on a GPU."""

SMALLEST = 16
"""Smallest number of samples in a batch, if the samples are very large."""


def batch_size(input: Input, device: torch.device) -> int:
    return max(SMALLEST, PLACES * (8 if device.type == "cuda" else 1) // input.extent)


def split(samples: Tensor, size: int) -> tuple[Tensor, ...]:
    """All samples in batches of about equal size, because the statistics of a small last batch would differ
    from the others."""
    return samples.tensor_split(math.ceil(len(samples) / size))


def split_evenly(samples: Tensor, size: int) -> tuple[Tensor, ...]:
    """Samples [n, ...] in batches of one size, at most `size`.

    Up to one eighth of the samples, evenly spread, is left out, so that centers of many sizes share a few
    batch sizes. On a GPU, each new size costs a first use of all kernels.
    """
    kept = len(samples) - len(samples) % (1 << max(0, len(samples).bit_length() - 4))
    if kept < len(samples):
        index = torch.arange(kept, device=samples.device) * len(samples) // kept
        samples = samples[index]
    return samples.tensor_split(1 << (-(-kept // size) - 1).bit_length())


def padded(batch: Tensor, size: int) -> Tensor:
    """A batch [n, ...] filled up with copies of its first sample.

    The length becomes a power of two between an eighth of `size` and `size`, so there are four lengths in
    total.
    """
    length = min(size, max(SMALLEST, size // 8, 1 << (len(batch) - 1).bit_length()))
    if len(batch) >= length:
        return batch
    return torch.cat([batch, batch[:1].expand(length - len(batch), *batch.shape[1:])])
