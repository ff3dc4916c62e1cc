"""Guesses of the wanted labels: which of them are confident, and how they are spread over the classes.

Pure functions of tensors. `labels.posterior` sharpens a guess with the center's own label.
"""

from __future__ import annotations

import torch
from torch import Tensor


def confident_pseudo_labels(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """`argmax_k f_k` and whether `max_k f_k > threshold`: int64 [N] and bool [N], from [N, K]."""
    top, label = probabilities.max(1)
    return label, top > threshold


def align(guesses: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Rescales guesses so that each wanted class gets the mass expected from the center's labels.

        expected_k = sum_i S[k | y_i],    S[k | j] = M[j, k] / sum_k' M[j, k']
        q_ik <- q_ik * expected_k / sum_i' q_i'k,    rows normalized again

    guesses: [N, K] distributions; matrix: [J, K], or M times the prior of the wanted classes, if that is
    known and not uniform; labels: int64 [N]. Within a label, self-training tends to reinforce the class it
    already prefers, and this keeps the shares in place. Do not use it if the prior is far from the truth.
    """
    allowed = matrix.double()[labels]
    expected = (allowed / allowed.sum(1, keepdim=True).clamp_min(1e-12)).sum(0)
    q = guesses.double()
    scaled = q * (expected / q.sum(0).clamp_min(1e-12))
    total = scaled.sum(1, keepdim=True)
    return torch.where(total > 0, scaled / total.clamp_min(1e-300), q).to(guesses.dtype)


def normalized(mass: Tensor) -> Tensor:
    """Rows of [N, K] non-negative mass divided by their sums."""
    return mass / mass.sum(1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
