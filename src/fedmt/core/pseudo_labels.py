"""Guesses of the wanted labels: which of them are confident, and how they are spread over the classes.

Pure functions of tensors. How a guess is sharpened by the center's own label is `labels.posterior`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def confident_pseudo_labels(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """`argmax_k f_k` and whether `max_k f_k > threshold`: int64 [N] and bool [N], from [N, K]."""
    top, label = probabilities.max(1)
    return label, top > threshold


def align(guesses: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Guesses rescaled so that each wanted class gets the mass that the center's labels let expect.

        expected_k = sum_i S[k | y_i],    S[k | j] = M[j, k] / sum_k' M[j, k']
        q_ik <- q_ik * expected_k / sum_i' q_i'k,    rows normalised again

    guesses: [N, K] distributions; matrix: [J, K], or M times the prior of the wanted classes, where that is
    known and not uniform; labels: int64 [N]. Within a label, self-training tends to feed the class it already
    prefers; this holds the shares in place. Where the prior is far from true, do not align.
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
