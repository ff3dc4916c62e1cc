"""FLTrust (Cao et al. 2021), with the reference center's own update as the root of trust.

    trust_c = max(0, cos(u_c, u_0))
    u       = sum_c trust_c * |u_0| / |u_c| * u_c / sum_c trust_c

u_0 is the update that the reference center's clean labels give to the same model. An update that points away
from it does not count, and every other is scaled to its length. `training.weights` is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedmt.aggregation.base import Accumulator, Weights
from fedmt.aggregation.guards.base import Guard, Guarded, Update, averaged
from fedmt.aggregation.guards.geometry import control_names, cosine, norm, scaled, weight_names


@dataclass(frozen=True)
class FLTrust(Guard):
    """The reference center trains once more per round, on the model that the centers received."""

    name: ClassVar[str] = "fltrust"
    needs_root: ClassVar[bool] = True

    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        facts: dict[str, dict[str, Any]] = {}
        return Guarded(averaged(self._trusted(updates, root, facts), mean), facts)

    def _trusted(
        self, updates: Sequence[Update], root: Weights | None, facts: dict[str, dict[str, Any]]
    ) -> Iterator[Update]:
        """The updates that count, each scaled when it is read, so that one is in memory at a time."""
        for update in updates:
            own = dict(update.tensors)
            trust = max(0.0, cosine(own, root) or 0.0) if root is not None else 0.0
            facts[update.center] = {"trust": trust}
            if root is None or trust == 0.0:
                continue
            common = [key for key in weight_names(own) if key in root]
            factor = norm(root, common) / norm(own, common)
            # A control variate follows its update, because both have the length that the same training gave
            # them.
            tensors = scaled(own, {*weight_names(own), *control_names(own)}, factor)
            yield Update(update.center, tensors, trust)
