"""FedBN (Li et al. 2021): FedAvg of everything but the batch-norm layers, which stay at their center.

This holds for parameters and running statistics alike, so it needs `training.batch_norm = "running"`. The
model that is tested and exported has the batch-norm layers of the reference center.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmt.aggregation.base import Strategy


@dataclass(frozen=True)
class FedBN(Strategy):
    """f <- f + rate * mean_c (f_c - f), except for batch-norm layers"""

    name: ClassVar[str] = "fedbn"
    keeps_batch_norm: ClassVar[bool] = True
