"""What a center says in its answer, checked before it counts: the coordinator trusts no number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedmt.engines.site import Record


class LeftOut(Exception):
    """Why an answer does not count."""


MEASURES = (
    "confident_share",
    "pseudo_label_accuracy",
    "correspondence_error",
    "prior_error",
    "filled_columns",
    "unprojected_samples",
)
"""What a center may tell of its round beside its losses."""


def metrics_of(given: Any) -> Record:
    """What a center tells of its round, as far as it is known and finite."""
    if not isinstance(given, dict):
        return {}
    found: Record = {k: float(given[k]) for k in MEASURES if _is_number(given.get(k))}
    losses = given.get("losses")
    if isinstance(losses, dict) and losses and all(_is_number(v) for v in losses.values()):
        found["losses"] = {str(k): float(v) for k, v in losses.items()}
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def samples_of(facts: Mapping[str, Any]) -> float:
    samples = facts.get("samples")
    if not isinstance(samples, int) or samples < 1:
        raise LeftOut(f"it says that it has {samples} samples")
    return float(samples)
