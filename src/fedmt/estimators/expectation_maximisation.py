"""Expectation maximization: every sample counts for M-hat, not only the confident ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedmt.core.labels import posterior
from fedmt.core.priors import estimated_joint, estimated_prior
from fedmt.estimators.base import Estimate, Estimator, Evidence, normalised

EVENNESS = 0.75
"""How far M-hat treats the labels as equally frequent, from 0 (not at all) to 1 (completely)."""


class ExpectationMaximisation(Estimator):
    """See `expectation_maximisation`."""

    name: ClassVar[str] = "em"

    def estimate(self, evidence: Evidence) -> Estimate:
        if evidence.prior is not None:
            # EM on g pi: a known prior is part of the scores, and only M is estimated.
            scores = evidence.probabilities * evidence.prior.to(evidence.probabilities)
            return expectation_maximisation(scores, evidence.labels, evidence.classes)
        joint = estimated_joint(evidence.probabilities, evidence.labels, evidence.classes)
        found = normalised(evened(joint.double()), evidence.probabilities.dtype)
        prior = estimated_prior(evidence.probabilities, found.matrix, evidence.labels)
        return Estimate(found.matrix, found.filled, prior)


def evened(joint: Tensor) -> Tensor:
    """The joint distribution [J, K] as if its labels were more equally frequent: each row is divided by the
    frequency of its label to the power `EVENNESS`. M-hat is this with its columns divided by their sums.

    The model makes mistakes, so some samples of every label look like class k, and M-hat must tell these from
    the samples that are of class k. If samples were counted as they are (0), a frequent label would attract
    every class: the mistakes among its many samples outnumber the right guesses among the few of a rare
    label. If every label counted the same (1), a rare label would attract a frequent class: a few mistakes
    are a large share of its few samples. If a class belongs to a single label, the power makes no difference
    once the guesses are right.
    """
    shares = joint.sum(1, keepdim=True).clamp_min(torch.finfo(joint.dtype).tiny)
    return joint / shares**EVENNESS


def expectation_maximisation(
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
        estimate = normalised(joint, f.dtype)
    return Estimate(estimate.matrix.to(probabilities.dtype), estimate.filled)
