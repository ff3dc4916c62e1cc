"""Counting, the paper's estimator: how often each label occurs with each confident pseudo-label."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedmt.core.pseudo_labels import confident_pseudo_labels
from fedmt.estimators.base import Estimate, Estimator, Evidence, normalized


class Counting(Estimator):
    """See `counting`."""

    name: ClassVar[str] = "counting"

    def estimate(self, evidence: Evidence) -> Estimate:
        return counting(evidence.probabilities, evidence.labels, evidence.classes, evidence.threshold)


def counting(probabilities: Tensor, labels: Tensor, num_classes: int, threshold: float) -> Estimate:
    """How often each label j occurs with the confident pseudo-label k.

        M-hat[j, k] = #{i confident: y_i = j, argmax f_i = k} / #{i confident: argmax f_i = k}

    probabilities: [N, K]; labels: int64 [N] in 0..num_classes-1 (= J).
    """
    pseudo, confident = confident_pseudo_labels(probabilities, threshold)
    wanted = probabilities.shape[1]
    pairs = labels[confident] * wanted + pseudo[confident]
    counts = torch.bincount(pairs, minlength=num_classes * wanted)
    return normalized(counts.view(num_classes, wanted).double(), probabilities.dtype)
