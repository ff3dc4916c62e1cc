"""The losses of the paper, as pure functions of logits.

Everything is computed from logits by log-sum-exp. The result is exact even where probabilities would round to
0 or 1, and every gradient is finite.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def projected_cross_entropy(
    logits: Tensor, matrix: Tensor, target: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """The client loss R^p: cross-entropy of the projected scores `M f`.

        loss_i = -log sum_k M[y_i, k] softmax(z_i)_k = -logsumexp_k (log_softmax(z_i)_k + log M[y_i, k])

    logits: [B, K]; matrix: [J, K], columns sum to 1; target: int64 [B], in 0..J-1. Returns [B], its mean or
    its sum. A target whose row of M is all zero has probability 0 and gives inf. `Center` rejects such data
    if M is given, and FedMT leaves it out if M is estimated.

    >>> import torch
    >>> z = torch.zeros(1, 4)
    >>> m = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    >>> projected_cross_entropy(z, m, torch.tensor([0])).exp()   # two of four equal classes
    tensor(2.)
    """
    # log_softmax comes first: it subtracts the largest score, so nothing cancels for scores of any size. The
    # -inf of a zero in M adds exactly nothing to the sum and to the gradient.
    log_joint = logits.log_softmax(1) + matrix.log()[target]
    loss = -log_joint.logsumexp(1)
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss


def double_softmax_cross_entropy(
    logits: Tensor, matrix: Tensor, target: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """Cross-entropy that treats the projected *probabilities* as logits, so softmax is applied twice.

        loss_i = logsumexp_j p_ij - p_i,y_i,       p_i = M softmax(z_i)

    This is not a likelihood: it is between log(1 + (J-1)/e) and log(e + J - 1). The published curves fit only
    this form, so it is kept under its own name for comparison. Shapes as in `projected_cross_entropy`.
    """
    projected = logits.softmax(1) @ matrix.to(logits.dtype).T
    return F.cross_entropy(projected, target, reduction=reduction)


def fix_loss(logits: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """L_fix: cross-entropy of the strong views against the pseudo-labels, over the samples that count.

    logits [B, K] of strong views; target: int64 [B], or soft targets [B, K] whose rows sum to 1; counts [B]
    in {0, 1}. The mean is over the whole batch, so the weight of the loss is the share that counts.
    """
    loss = F.cross_entropy(logits, target, reduction="none")
    return (loss * counts.to(loss.dtype)).mean()


def mix_loss(logits: Tensor, target_fix: Tensor, target_mix: Tensor, share: Tensor, counts: Tensor) -> Tensor:
    """L_mix: cross-entropy of the mixed views against both pseudo-labels, weighted by their shares in the
    mix.

        L_mix = lam * CE(f(x_mix), y_fix) + (1 - lam) * CE(f(x_mix), y_mix),    lam ~ Beta(a, a)

    logits [B, K] of mixed views, targets int64 [B] or soft [B, K], share lam [B] or scalar, counts [B] in {0,
    1}: whether the `fix` partner counts.
    """
    first, second = (F.cross_entropy(logits, y, reduction="none") for y in (target_fix, target_mix))
    loss = share * first + (1 - share) * second
    return (loss * counts.to(loss.dtype)).mean()
