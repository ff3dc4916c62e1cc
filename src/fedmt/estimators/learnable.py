"""Learnable, the paper's comparison: each column of M-hat is a softmax of free parameters, which R^p trains
with the model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedmt.estimators.base import Estimate, Estimator, Evidence


class Learnable(Estimator):
    """M-hat is what the center remembers. Before the first round, it is random and nearly uniform."""

    name: ClassVar[str] = "learnable"
    trained: ClassVar[bool] = True

    def estimate(self, evidence: Evidence) -> Estimate:
        if evidence.before is not None:
            return Estimate(evidence.before, None)
        # Nearly uniform, because pseudo-labels are sharpened by M, and an uninformed M must not distort them.
        shape = evidence.classes, evidence.probabilities.shape[1]
        free = 0.1 * torch.from_numpy(evidence.rng.standard_normal(shape, dtype=np.float32))
        return Estimate(free.softmax(0).to(evidence.probabilities), None)

    def free_parameters(self, matrix: Tensor) -> Tensor:
        # Clamped, because a probability that has become 0 in float32 has no logarithm.
        return matrix.clamp_min(1e-12).log()

    def matrix_of(self, free: Tensor) -> Tensor:
        return free.softmax(0)
