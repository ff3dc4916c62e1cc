"""No guard: every finite update counts as it is, however large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedmt.aggregation.base import Accumulator, Weights
from fedmt.aggregation.guards.base import Guard, Guarded, Update, averaged


@dataclass(frozen=True)
class NoGuard(Guard):
    """The strategy's own mean. With secure aggregation, there is no other."""

    name: ClassVar[str] = "none"
    leaves_out: ClassVar[bool] = False
    needs_single_updates: ClassVar[bool] = False

    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        return Guarded(averaged(updates, mean))
