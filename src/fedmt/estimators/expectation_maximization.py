"""Expectation maximization: every sample counts for M-hat, not only the confident ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedmt.core.labels import posterior
from fedmt.core.priors import estimated_joint, estimated_prior
from fedmt.estimators.base import Estimate, Estimator, Evidence, normalized

MEMORY = 10
"""About how many estimates the mean in `ExpectationMaximization` covers."""


class ExpectationMaximization(Estimator):
    """See `expectation_maximization`. If the class frequencies are estimated too, M-hat is the mean of the
    center's estimates so far, and after `MEMORY` of them a moving mean. A column without evidence counts as
    1/J in it.

    The guesses of one round are not enough: once M-hat assigns a class to a wrong label, the model unlearns
    the class, and the next estimates cannot correct it. In the mean, the other rounds outvote a single one.
    """

    name: ClassVar[str] = "em"

    def estimate(self, evidence: Evidence) -> Estimate:
        if evidence.prior is not None:
            # EM on g pi: a known prior is part of the scores, and only M is estimated.
            scores = evidence.probabilities * evidence.prior.to(evidence.probabilities)
            return expectation_maximization(scores, evidence.labels, evidence.classes)
        joint = estimated_joint(evidence.probabilities, evidence.labels, evidence.classes)
        found = normalized(by_label(joint.double()), evidence.probabilities.dtype)
        matrix = found.matrix
        if evidence.before is not None:
            matrix = evidence.before.lerp(matrix, 1 / min(evidence.estimates + 1, MEMORY))
        prior = estimated_prior(evidence.probabilities, matrix, evidence.labels)
        return Estimate(matrix, found.filled, prior)


def by_label(joint: Tensor) -> Tensor:
    """Each row of the joint distribution [J, K] divided by its sum: the shares of the classes under a label.

    M-hat is this with its columns divided by their sums, as if all labels were equally frequent. Without that
    step, a frequent label would attract every class, because the model's mistakes among its many samples
    outnumber the right guesses among the few of a rare label. If a class belongs to a single label, both give
    the same M once the guesses are right. If it is shared between labels, its shares here are those of
    equally frequent labels.
    """
    return joint / joint.sum(1, keepdim=True).clamp_min(torch.finfo(joint.dtype).tiny)


def expectation_maximization(
    probabilities: Tensor, labels: Tensor, num_classes: int, iterations: int = 20
) -> Estimate:
    """M-hat by EM: every sample counts, weighted by its posterior, so rare classes are not lost to a
    threshold.

        E: q_ik ~ f_ik M[y_i, k]        M: M[j, k] ~ sum of q_ik over the samples labeled j

    Started from f itself (the uniform M). Shapes as in `counting`. Every iteration increases the
    likelihood `sum_i log sum_k f_ik M[y_i, k]`.
    """
    # float64, because these are sums over a whole center, computed once per round.
    f = probabilities.double().nan_to_num(0.0, 0.0, 0.0).clamp_min(0)
    f = f / f.sum(1, keepdim=True).clamp_min(torch.finfo(f.dtype).tiny)
    matrix = torch.full((num_classes, f.shape[1]), 1 / num_classes, dtype=f.dtype, device=f.device)
    estimate = Estimate(matrix, torch.ones(f.shape[1], dtype=torch.bool, device=f.device))
    for _ in range(iterations):
        q = posterior(f, estimate.matrix, labels)
        joint = torch.zeros_like(matrix).index_add_(0, labels, q)
        estimate = normalized(joint, f.dtype)
    return Estimate(estimate.matrix.to(probabilities.dtype), estimate.filled)
