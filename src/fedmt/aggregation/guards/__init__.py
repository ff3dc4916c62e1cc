"""Guards, one per file: they keep one bad center from determining the model."""

from __future__ import annotations

from fedmt.aggregation.guards.base import Guard, Guarded, Update, averaged
from fedmt.aggregation.guards.clip import Clip
from fedmt.aggregation.guards.fltrust import FLTrust
from fedmt.aggregation.guards.geometric_median import GeometricMedian
from fedmt.aggregation.guards.median import CoordinateMedian, TrimmedMeanGuard
from fedmt.aggregation.guards.mixing import mixed
from fedmt.aggregation.guards.none import NoGuard
from fedmt.core.registry import Registry, subclass_of

DEFAULT_GUARD = Clip.name

GUARDS: Registry[type[Guard]] = Registry(
    "guard",
    {g.name: g for g in (NoGuard, Clip, TrimmedMeanGuard, CoordinateMedian, GeometricMedian, FLTrust)},
    subclass_of(Guard, "fedmt.aggregation.guards.Guard"),
)

__all__ = [
    "DEFAULT_GUARD",
    "GUARDS",
    "Clip",
    "CoordinateMedian",
    "FLTrust",
    "GeometricMedian",
    "Guard",
    "Guarded",
    "NoGuard",
    "TrimmedMeanGuard",
    "Update",
    "averaged",
    "mixed",
]
