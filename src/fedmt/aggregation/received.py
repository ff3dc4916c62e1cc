"""The updates of one round: held until all have arrived, measured, judged, and then combined.

An unusual update can only be recognized by comparison with the others, so all are kept until then (`shelf`).
Recorded for each center:

    update_norm      of what it sends, in float64 (weights alone, without `control:`)
    update_cosine    to the mean of all plausible updates of the round, every center counting once

An update is not plausible, and is left out, if its norm is `FAR` times the median norm of the round, or
`BEYOND` times that of the whole model: no training makes such a step, but a broken or malicious center can
send one, and it would dominate the mean.
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
from fedmt.aggregation.guards.geometry import dot, norm, plain_mean, weight_names
from fedmt.aggregation.shelf import Shelf

FAR = 1000.0
BEYOND = 1e4


@dataclass(frozen=True, eq=False)
class Combined:
    """The result of combining a round's updates.

    mean: by name, the strategy's step. counts: by name, the number of updates in it. left_out: by center, why
    its update is not included. facts: what is recorded about each center.
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
        self._shelf = Shelf()

    def add(self, center: str, update: Weights, weight: float) -> bool:
        """Holds an update, whose tensors it may keep and change. Returns False and holds nothing if it is not
        finite."""
        if not all_finite(update.values()):
            return False
        found = Update(center, update, weight)
        if not self._shelf.has_room(update):
            found = found.stored(self._shelf.put(update))
        self.updates.append(found)
        return True

    @torch.no_grad()
    def combine(self, root: Weights | None = None) -> Combined:
        """root: the reference center's own update, if the guard needs it."""
        # Measured before anything is combined, because an accumulator may change its inputs.
        norms = [u.norm for u in self.updates]
        left_out = self._left_out(norms) if self.guard.leaves_out else {}
        used = [u for u in self.updates if u.center not in left_out]
        facts = self._measured(used, norms)
        if self.guard.mix:
            used = mixed(used, self.guard.mix)
        guarded = self.guard.combine(used, self.strategy.accumulator(), root)
        for center, found in guarded.facts.items():
            facts[center] |= found
        self.updates, self._shelf = [], Shelf()
        accumulator: Accumulator = guarded.accumulator
        return Combined(accumulator.result(), accumulator.counts, left_out, facts)

    def _measured(self, used: list[Update], norms: list[float]) -> dict[str, dict[str, Any]]:
        mean = plain_mean([u.tensors for u in used])
        sizes: dict[tuple[str, ...], float] = {}  # the mean's norm over the names that a center has
        facts: dict[str, dict[str, Any]] = {}
        for update, own in zip(self.updates, norms, strict=True):
            names = tuple(key for key in weight_names(update.tensors) if key in mean)
            if names not in sizes:
                sizes[names] = norm(mean, names)
            facts[update.center] = {"update_norm": own}
            if own > 0 and sizes[names] > 0:
                angle = dot(update.tensors, mean, names) / (own * sizes[names])
                facts[update.center]["update_cosine"] = max(-1.0, min(1.0, angle))
        return facts

    def _left_out(self, norms: list[float]) -> dict[str, str]:
        """For each center, what is not plausible about its update. norms: those of the updates, without
        `control:`."""
        found: dict[str, str] = {}
        whole = {k: v for k, v in self.model.items() if v.is_floating_point()}
        size = norm(whole, sorted(whole))
        controls = [u.control_norm for u in self.updates]
        for sizes, what in ((norms, "update"), (controls, "control variate")):
            usual = median_low(sizes) if sizes else 0.0
            for update, own in zip(self.updates, sizes, strict=True):
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
