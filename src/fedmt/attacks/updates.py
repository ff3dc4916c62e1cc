"""Bad centers that send updates other than those they computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedmt.aggregation import Weights
from fedmt.aggregation.guards import Update
from fedmt.attacks.base import Attack


@dataclass(frozen=True)
class Scale(Attack):
    """u <- factor * u: a broken center, or one that wants to dominate the mean."""

    name: ClassVar[str] = "scale"

    factor: float = 1e6
    """Factor by which a bad center multiplies its update."""

    def send(self, update: Update, honest: Sequence[Update]) -> Update:
        return Update(update.center, {k: self.factor * v for k, v in update.tensors.items()}, update.weight)


@dataclass(frozen=True)
class SignFlip(Scale):
    """u <- -u: training backwards, with an inconspicuous length."""

    name: ClassVar[str] = "sign_flip"

    factor: float = -1.0
    """Factor by which a bad center multiplies its update."""


@dataclass(frozen=True)
class InnerProduct(Attack):
    """u <- -strength * mean of the honest updates (Xie et al. 2020): against the direction of all others."""

    name: ClassVar[str] = "inner_product"

    strength: float = 10.0
    """Length of the malicious update, relative to the honest mean."""

    def send(self, update: Update, honest: Sequence[Update]) -> Update:
        mean, _ = moments(update, honest)
        return Update(update.center, {k: -self.strength * v for k, v in mean.items()}, update.weight)


@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """u <- mean - z * deviation of the honest updates (Baruch et al. 2019): each weight is within the usual
    range, but all of them are on the same side."""

    name: ClassVar[str] = "alie"

    z: float = 1.5
    """Distance from the honest mean, in standard deviations of every weight."""

    def send(self, update: Update, honest: Sequence[Update]) -> Update:
        mean, deviation = moments(update, honest)
        return Update(update.center, {k: v - self.z * deviation[k] for k, v in mean.items()}, update.weight)


def moments(update: Update, honest: Sequence[Update]) -> tuple[Weights, Weights]:
    """Mean and standard deviation of the honest updates, for every weight of `update`. If no honest center
    sends a weight (a head), it is the bad center's own, without deviation."""
    mean, deviation = {}, {}
    for key, own in update.tensors.items():
        values = torch.stack([u.tensors[key] for u in honest if key in u.tensors] or [own])
        mean[key] = values.mean(0)
        deviation[key] = values.std(0, correction=0)
    return mean, deviation
