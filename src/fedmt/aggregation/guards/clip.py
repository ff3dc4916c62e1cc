"""Norm clipping (Sun et al. 2019): no center moves the model much farther than the others do.

    u_c <- u_c * min(1, multiple * median_c |u_c| / |u_c|)

The median of a round's own norms needs no tuning, and a minority cannot move it far. An update that is not
clipped is unchanged, so runs with honest centers have the same weights with and without it. The default
leaves room for a center with ten times the samples of the others, whose updates are about five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, ClassVar

from fedmt.aggregation.base import Accumulator, Weights
from fedmt.aggregation.guards.base import Guard, Guarded, Update, averaged
from fedmt.aggregation.guards.geometry import control_names, scaled, weight_names
from fedmt.core.errors import at_least


@dataclass(frozen=True)
class Clip(Guard):
    """Scales long updates down."""

    name: ClassVar[str] = "clip"

    multiple: float = 10.0
    """Largest norm of an update, as a multiple of the round's median norm. Lower it against stronger attacks,
    but keep it above the ratio of the centers' sizes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("aggregation.guard.multiple", self.multiple, 1)

    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        facts: dict[str, dict[str, Any]] = {}
        clipped = list(updates)
        sizes = ([u.norm for u in updates], [u.control_norm for u in updates])
        for select, norms in zip((weight_names, control_names), sizes, strict=True):
            most = self.multiple * median_low(norms) if norms else 0.0
            for place, size in enumerate(norms):
                if size > most > 0:
                    update = clipped[place]
                    tensors = scaled(update.tensors, set(select(update.tensors)), most / size)
                    clipped[place] = Update(update.center, tensors, update.weight)
                    facts.setdefault(update.center, {})["clipped"] = most / size
        return Guarded(averaged(clipped, mean), facts)
