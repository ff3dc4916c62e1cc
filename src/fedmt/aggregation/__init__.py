"""Aggregation strategies, one a file: how centers' updates become the next global model."""

from __future__ import annotations

from fedmt.aggregation.base import RunningMean, Strategy, Weights, all_finite, packed, unpacked
from fedmt.aggregation.fedavg import FedAvg, FedAvgM
from fedmt.aggregation.fedbn import FedBN
from fedmt.aggregation.fedopt import FedAdam, FedYogi
from fedmt.aggregation.fedprox import FedProx
from fedmt.aggregation.scaffold import Scaffold
from fedmt.registry import Registry, subclass_of

STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy",
    {s.name: s for s in (FedAvg, FedAvgM, FedProx, FedBN, Scaffold, FedAdam, FedYogi)},
    subclass_of(Strategy, "fedmt.aggregation.Strategy"),
)

__all__ = [
    "STRATEGIES",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedProx",
    "FedYogi",
    "RunningMean",
    "Scaffold",
    "Strategy",
    "Weights",
    "all_finite",
    "packed",
    "unpacked",
]
