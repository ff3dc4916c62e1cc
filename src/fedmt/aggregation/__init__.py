"""Aggregation strategies, one per file: how centers' updates become the next global model."""

from __future__ import annotations

from fedmt.aggregation.base import (
    Accumulator,
    RunningMean,
    Strategy,
    Weights,
    all_finite,
    packed,
    unpacked,
)
from fedmt.aggregation.fedavg import FedAvg, FedAvgM
from fedmt.aggregation.fedbn import FedBN
from fedmt.aggregation.fedopt import FedAdam, FedYogi
from fedmt.aggregation.fedprox import FedProx
from fedmt.aggregation.guards import DEFAULT_GUARD, GUARDS, Clip, Guard, NoGuard, Update
from fedmt.aggregation.received import Combined, Received
from fedmt.aggregation.scaffold import Scaffold
from fedmt.aggregation.transforms import Transform, Transforms
from fedmt.aggregation.trimmed_mean import TrimmedMean
from fedmt.core.registry import Registry, subclass_of

STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy",
    {s.name: s for s in (FedAvg, FedAvgM, FedProx, FedBN, Scaffold, FedAdam, FedYogi, TrimmedMean)},
    subclass_of(Strategy, "fedmt.aggregation.Strategy"),
)

__all__ = [
    "DEFAULT_GUARD",
    "GUARDS",
    "STRATEGIES",
    "Accumulator",
    "Clip",
    "Combined",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedProx",
    "FedYogi",
    "Guard",
    "NoGuard",
    "Received",
    "RunningMean",
    "Scaffold",
    "Strategy",
    "Transform",
    "Transforms",
    "TrimmedMean",
    "Update",
    "Weights",
    "all_finite",
    "packed",
    "unpacked",
]
