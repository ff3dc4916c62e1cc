"""What an attack is: a simulation of centers that are broken or malicious, to measure how well a guard works.

It is for benchmarks, where all centers are in one process. An attack may change the data of the bad centers,
their updates, or both. It may know everything, including the honest centers' updates, because a guard must
withstand the worst case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedmt.aggregation.guards import Update
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.registry import Named
from fedmt.data.center import Center, Federation

Predict = Callable[[Tensor], Tensor]
"""Takes stored samples [N, ...] and returns the tested model's probabilities [N, K]."""


@dataclass(frozen=True)
class Attack(Named):
    """Base of the attacks."""

    centers: tuple[str, ...]
    """Names of the bad centers."""

    def __post_init__(self) -> None:
        if not self.centers:
            raise FedmtError("attack.centers: empty. Name the bad centers.")

    def on_data(self, federation: Federation) -> Federation:
        """The federation with the data of the bad centers changed."""
        names = [center.name for center in federation.centers]
        for name in self.centers:
            if name not in names:
                raise FedmtError(
                    f"attack.centers: there is no center '{name}'.{nearest(name, names)} Known: "
                    f"{listed(names)}."
                )
        spoiled = tuple(
            self.spoil(c, federation) if c.name in self.centers else c for c in federation.centers
        )
        return replace(federation, centers=spoiled)

    def spoil(self, center: Center, federation: Federation) -> Center:
        """The data of a bad center."""
        return center

    def on_updates(self, updates: Sequence[Update]) -> list[Update]:
        """What arrives instead of a round's updates."""
        honest = [u for u in updates if u.center not in self.centers]
        return [self.send(u, honest) if u.center in self.centers else u for u in updates]

    def send(self, update: Update, honest: Sequence[Update]) -> Update:
        """What a bad center sends instead of its update."""
        return update

    def success(self, federation: Federation, predict: Predict) -> float | None:
        """How well it worked, as a share, if that is something other than a loss of accuracy."""
        return None
