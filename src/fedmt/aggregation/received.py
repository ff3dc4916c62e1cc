"""The updates of one round: held until all have arrived, measured, judged, and then combined.

Who is odd can be told only next to the others, so they are in memory together. Recorded of each center:

    update_norm      of what it sends, in float64 (weights alone, without `control:`)
    update_cosine    to the mean of all plausible updates of the round, every center counting once

An update is not plausible, and left out, if its norm is `FAR` times the median norm of the round, or
`BEYOND` times that of the whole model: no training makes such a step, but a broken or malicious center can
send one, and it would be the whole mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from fedmt.aggregation.base import Accumulator, Strategy, Weights, all_finite
from fedmt.aggregation.guards import Guard, Update, mixed
from fedmt.aggregation.guards.geometry import control_names, cosine, norm, plain_mean, weight_names

FAR = 1000.0
BEYOND = 1e4


@dataclass(frozen=True, eq=False)
class Combined:
    """What a round's updates became.

    mean: by name, what the strategy steps by. counts: by name, how many updates are in it. left_out: by
    center, why its update is not. facts: what is recorded of each center.
    """

    mean: Weights
    counts: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


class Received:
    """model: the weights that the centers received."""

    def __init__(self, strategy: Strategy, guard: Guard, model: Mapping[str, Tensor]) -> None:
        self.strategy, self.guard, self.model = strategy, guard, model
        self.updates: list[Update] = []

    def add(self, center: str, update: Weights, weight: float) -> bool:
        """Holds an update, whose tensors it may keep and change; False, holding nothing, if it is not
        finite."""
        if not all_finite(update.values()):
            return False
        self.updates.append(Update(center, update, weight))
        return True

    @torch.no_grad()
    def combine(self, root: Weights | None = None) -> Combined:
        """root: the reference center's own update, where the guard needs it."""
        # Before anything is combined: an accumulator may change what it is given.
        left_out = self._left_out() if self.guard.leaves_out else {}
        used = [u for u in self.updates if u.center not in left_out]
        facts = self._measured(used)
        if self.guard.mix:
            used = mixed(used, self.guard.mix)
        guarded = self.guard.combine(used, self.strategy.accumulator(), root)
        for center, found in guarded.facts.items():
            facts[center] |= found
        self.updates = []
        accumulator: Accumulator = guarded.accumulator
        return Combined(accumulator.result(), accumulator.counts, left_out, facts)

    def _measured(self, used: list[Update]) -> dict[str, dict[str, Any]]:
        mean = plain_mean([u.tensors for u in used])
        facts: dict[str, dict[str, Any]] = {}
        for update in self.updates:
            own = facts[update.center] = {"update_norm": norm(update.tensors, weight_names(update.tensors))}
            angle = cosine(update.tensors, mean)
            if angle is not None:
                own["update_cosine"] = angle
        return facts

    def _left_out(self) -> dict[str, str]:
        """By center, what is not plausible about its update."""
        found: dict[str, str] = {}
        whole = {k: v for k, v in self.model.items() if v.is_floating_point()}
        size = norm(whole, sorted(whole))
        for select, what in ((weight_names, "update"), (control_names, "control variate")):
            norms = [norm(u.tensors, select(u.tensors)) for u in self.updates]
            usual = median_low(norms) if norms else 0.0
            for update, own in zip(self.updates, norms, strict=True):
                if update.center in found:
                    continue
                if usual > 0 and own > FAR * usual:
                    found[update.center] = (
                        f"its {what} is not plausible: its norm is {own:.3g}, {own / usual:.3g} times the "
                        f"median of {usual:.3g}"
                    )
                elif size > 0 and own > BEYOND * max(size, 1.0):
                    found[update.center] = (
                        f"its {what} is not plausible: its norm is {own:.3g}, and that of the whole model "
                        f"{size:.3g}"
                    )
        return found
