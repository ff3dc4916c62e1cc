"""Estimators of M, one per file: how a center computes M-hat if its correspondence is not given."""

from __future__ import annotations

from fedmt.core.registry import Registry, subclass_of
from fedmt.estimators.base import Estimate, Estimator, Evidence
from fedmt.estimators.counting import Counting
from fedmt.estimators.expectation_maximization import ExpectationMaximization
from fedmt.estimators.learnable import Learnable

ESTIMATORS: Registry[type[Estimator]] = Registry(
    "estimator",
    {e.name: e for e in (Counting, ExpectationMaximization, Learnable)},
    subclass_of(Estimator, "fedmt.estimators.Estimator"),
)

__all__ = [
    "ESTIMATORS",
    "Counting",
    "Estimate",
    "Estimator",
    "Evidence",
    "ExpectationMaximization",
    "Learnable",
]
