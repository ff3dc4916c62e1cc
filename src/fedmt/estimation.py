"""Estimating a center's correspondence M from the model's guesses and the center's own labels.

Pure functions of tensors. Whatever comes in, the matrix that comes out is a valid correspondence:
entries in [0, 1], columns that sum to 1. A wanted class for which there is no evidence gets the
uniform column 1/J, and is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmt.labels import posterior


@dataclass(frozen=True, eq=False)
class Estimate:
    """matrix: M-hat, [J, K]. filled: bool [K], the columns without evidence, set to 1/J."""

    matrix: Tensor
    filled: Tensor


def confident_pseudo_labels(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """`argmax_k f_k` and whether `max_k f_k > threshold`: int64 [N] and bool [N], from [N, K]."""
    top, label = probabilities.max(1)
    return label, top > threshold


def counting(probabilities: Tensor, labels: Tensor, num_classes: int, threshold: float) -> Estimate:
    """The paper's estimator: how often each label j stands beside the confident pseudo-label k.

        M-hat[j, k] = #{i confident: y_i = j, argmax f_i = k} / #{i confident: argmax f_i = k}

    probabilities: [N, K]; labels: int64 [N] in 0..num_classes-1 (= J).
    """
    pseudo, confident = confident_pseudo_labels(probabilities, threshold)
    wanted = probabilities.shape[1]
    pairs = labels[confident] * wanted + pseudo[confident]
    counts = torch.bincount(pairs, minlength=num_classes * wanted)
    return _normalised(counts.view(num_classes, wanted).double(), probabilities.dtype)


def expectation_maximisation(
    probabilities: Tensor, labels: Tensor, num_classes: int, iterations: int = 20
) -> Estimate:
    """M-hat by EM: every sample counts, by its posterior, so rare classes are not lost to a threshold.

        E: q_ik ~ f_ik M[y_i, k]        M: M[j, k] ~ sum of q_ik over the samples labelled j

    Started from f itself (the uniform M). Shapes as in `counting`. It climbs the likelihood
    `sum_i log sum_k f_ik M[y_i, k]` at every iteration.
    """
    # float64: these are sums over a whole center, done once a round.
    f = probabilities.double().nan_to_num(0.0, 0.0, 0.0).clamp_min(0)
    f = f / f.sum(1, keepdim=True).clamp_min(torch.finfo(f.dtype).tiny)
    matrix = torch.full((num_classes, f.shape[1]), 1 / num_classes, dtype=f.dtype, device=f.device)
    estimate = Estimate(matrix, torch.ones(f.shape[1], dtype=torch.bool, device=f.device))
    for _ in range(iterations):
        q = posterior(f, estimate.matrix, labels)
        joint = torch.zeros_like(matrix).index_add_(0, labels, q)
        estimate = _normalised(joint, f.dtype)
    return Estimate(estimate.matrix.to(probabilities.dtype), estimate.filled)


def align(guesses: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Guesses rescaled so that each wanted class gets the mass that the center's labels let expect.

        expected_k = sum_i S[k | y_i],    S[k | j] = M[j, k] / sum_k' M[j, k']
        q_ik <- q_ik * expected_k / sum_i' q_i'k,    rows normalised again

    guesses: [N, K] distributions; matrix: [J, K]; labels: int64 [N]. S takes the wanted classes of one
    label for equally frequent: where that is far from true, do not align. Within a label, self-training
    tends to feed the class it already prefers; this holds the shares in place.
    """
    allowed = matrix.double()[labels]
    expected = (allowed / allowed.sum(1, keepdim=True).clamp_min(1e-12)).sum(0)
    q = guesses.double()
    scaled = q * (expected / q.sum(0).clamp_min(1e-12))
    total = scaled.sum(1, keepdim=True)
    return torch.where(total > 0, scaled / total.clamp_min(1e-300), q).to(guesses.dtype)


def frobenius_error(estimate: Tensor, truth: Tensor) -> float:
    """`|| M-hat - M ||_F`."""
    return float(torch.linalg.norm(estimate.double().cpu() - truth.double().cpu()))


def _normalised(mass: Tensor, dtype: torch.dtype) -> Estimate:
    """Columns of [J, K] non-negative mass divided by their sums; empty ones become 1/J."""
    totals = mass.sum(0)
    filled = ~(totals > 0)
    safe = torch.where(filled, torch.ones_like(totals), totals)
    uniform = torch.full_like(mass, 1 / mass.shape[0])
    return Estimate(torch.where(filled, uniform, mass / safe).to(dtype), filled)
