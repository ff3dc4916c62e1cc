"""What an estimator is: it turns a center's evidence into M-hat, a matrix [J, K].

For any input, the result is a valid correspondence: entries in [0, 1], columns that sum to 1. A wanted class
for which there is no evidence gets the uniform column 1/J, and is reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedmt.core.registry import Named


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence from which a center estimates its M in a round.

    probabilities: the received model's on the center's samples, [N, K]. labels: its own, int64 [N] in
        0..classes-1 (= J). threshold: xi, above which a pseudo-label is confident. before: the M-hat that it
        remembers from its last estimate, [J, K], if any. rng: the center's random numbers in this round.
    estimates: the number of estimates that the center has made before. It is not the number of rounds,
        because a center may miss some.
    prior: the frequencies of the wanted classes at the center, [K]. None means that an estimator that
        supports it estimates them with M (`fedmt.core.priors`).
    """

    probabilities: Tensor
    labels: Tensor
    classes: int
    threshold: float
    before: Tensor | None
    rng: np.random.Generator
    estimates: int
    prior: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Estimate:
    """matrix: M-hat, [J, K]. filled: bool [K], the columns without evidence, set to 1/J; None if the
    estimator does not count evidence. prior: [K], if the estimator found it together with M."""

    matrix: Tensor
    filled: Tensor | None
    prior: Tensor | None = None


class Estimator(Named, ABC):
    """Base class of the estimators. It is made without arguments and keeps no state, because a center
    remembers only M-hat."""

    trained: ClassVar[bool] = False
    """Whether M-hat is trained with the model, by R^p, through `free_parameters` and `matrix_of`."""

    @abstractmethod
    def estimate(self, evidence: Evidence) -> Estimate:
        """M-hat at the beginning of a center's round."""

    def free_parameters(self, matrix: Tensor) -> Tensor:
        """The parameters that are trained for M-hat [J, K], if the estimator is `trained`."""
        return matrix

    def matrix_of(self, free: Tensor) -> Tensor:
        """M-hat [J, K] from the trained parameters: a valid correspondence, whatever their values."""
        return free


def normalized(mass: Tensor, dtype: torch.dtype) -> Estimate:
    """Columns of [J, K] non-negative mass divided by their sums; empty ones become 1/J."""
    totals = mass.sum(0)
    filled = ~(totals > 0)
    safe = torch.where(filled, torch.ones_like(totals), totals)
    uniform = torch.full_like(mass, 1 / mass.shape[0])
    return Estimate(torch.where(filled, uniform, mass / safe).to(dtype), filled)
