"""Aggregation strategies, one a file: how centers' updates become the next global model."""

from __future__ import annotations

from fedmt.aggregation.fedavg import RunningMean, Weights, fedavg

__all__ = ["RunningMean", "Weights", "fedavg"]
