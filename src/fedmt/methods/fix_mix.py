"""Batches and views of L_fix and L_mix, shared by SemiFL, FedMT and training on plain labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedmt.core.losses import fix_loss, mix_loss
from fedmt.inputs import Views

Tensors = Mapping[str, Tensor]

MIXING = 0.75
"""The paper's a: the mixing share is Beta(a, a)."""


def fix_mix_steps(
    batches: np.ndarray,
    samples: int,
    a: float,
    augmentation: Views,
    rng: np.random.Generator,
    alone: bool = False,
) -> dict[str, Tensor]:
    """The inputs of each step, from its batch: batches [S, B], positions among the center's `samples`.

    index [S, 2, B]: each batch and its partners, drawn with replacement from the whole center (S_mix). share
    [S]: lambda_mix ~ Beta(a, a). weak, strong, mix: uniform numbers for the views.
    alone: each sample's partner is another weak view of itself, so that no sample sees another.
    """
    partners = batches if alone else rng.choice(np.arange(samples), size=batches.shape)
    index = np.stack([batches, partners], axis=1)
    strong_shape = (*batches.shape, augmentation.strong_numbers)
    steps = {
        "index": torch.from_numpy(index),
        "weak": torch.from_numpy(rng.random((*index.shape, augmentation.weak_numbers), dtype=np.float32)),
        "strong": torch.from_numpy(rng.random(strong_shape, dtype=np.float32)),
        "share": torch.from_numpy(rng.beta(a, a, size=len(index)).astype(np.float32)),
    }
    if augmentation.mix_numbers:
        mix_shape = (*batches.shape, augmentation.mix_numbers)
        steps["mix"] = torch.from_numpy(rng.random(mix_shape, dtype=np.float32))
    return steps


def fix_mix_views(samples: Tensor, steps: Tensors, augmentation: Views) -> tuple[Tensor, Tensor, Tensor]:
    """Weak views of each batch, strong views, and views mixed with its partners: [S, 2, B, ...] to three [S,
    B, ...]."""
    both = augmentation.weak(samples.flatten(0, 2), steps["weak"].flatten(0, 2))
    plain, partners = both.unflatten(0, samples.shape[:3]).unbind(1)
    own, uniforms = samples[:, 0].flatten(0, 1), steps["strong"].flatten(0, 1)
    distorted = augmentation.strong(plain.flatten(0, 1), own, uniforms)
    share = steps["share"].view(-1, *(1,) * (plain.dim() - 1))
    mixed = augmentation.mixed(plain, partners, share, steps.get("mix"))
    return plain, distorted.view_as(plain), mixed


def fix_mix_losses(
    strong_logits: Tensor, mixed_logits: Tensor, step: Tensors, target: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """L_fix and L_mix of one step, from the logits [B, K] of its strong and its mixed views.

    target: for all the center's samples, int64 [N] or soft [N, K]. counts: for the batch, [B] in {0, 1}.
    """
    index, partner = step["index"]
    own = target[index]
    return (
        fix_loss(strong_logits, own, counts),
        mix_loss(mixed_logits, own, target[partner], step["share"], counts),
    )
