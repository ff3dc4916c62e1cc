"""FedAvg (McMahan et al. 2017), with optional server momentum (Hsu et al. 2019; SemiFL uses 0.5).

    velocity <- momentum * velocity + mean_c (f_c - f)
    f        <- f + rate * velocity

The mean is over the centers that trained. The paper prints `f - eta * sum(f_c - f)`, whose sign and
scale cannot be meant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

Weights = dict[str, Tensor]


class RunningMean:
    """The weighted mean of updates as they arrive, so that they never pile up in memory.

    Centers are visited in one fixed order (sorted by name), so the sum is the same to the bit.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.mean: Weights = {}

    @torch.no_grad()
    def add(self, trained: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> bool:
        """Adds the update `trained - received`; returns False, adding nothing, if it is not finite."""
        update = {k: trained[k] - value for k, value in received.items() if value.is_floating_point()}
        if not all(bool(value.isfinite().all()) for value in update.values()):
            return False
        self.total += weight
        if not self.mean:
            self.mean = update
        else:
            for key, value in update.items():
                self.mean[key].add_(value.sub_(self.mean[key]), alpha=weight / self.total)
        return True


@torch.no_grad()
def fedavg(
    received: Mapping[str, Tensor],
    mean_update: Mapping[str, Tensor],
    velocity: Mapping[str, Tensor],
    parameters: Collection[str],
    rate: float = 1.0,
    momentum: float = 0.0,
) -> tuple[Weights, Weights]:
    """The next global weights and velocity. Without any update (all abstained) both stay as they are.

    Momentum drives `parameters` alone; buffers (batch-norm statistics) take the plain mean, since an
    overshoot could make a variance negative.
    """
    if not mean_update:
        return dict(received), dict(velocity)
    weights, new_velocity = {}, {}
    for key, value in received.items():
        if key not in mean_update:  # counters and the like have no mean: they stay as they were
            weights[key] = value
            continue
        step = mean_update[key]
        if key in parameters:
            if momentum > 0:
                step = step + momentum * velocity[key] if key in velocity else step
                new_velocity[key] = step
            weights[key] = value + rate * step
        else:
            weights[key] = value + step
    return weights, new_velocity
