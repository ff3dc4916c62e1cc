"""What a center has spent of its budget, kept between rounds and across resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.privacy.accounting import Cost, epsilon_of
from fedmt.privacy.spec import PrivacySpec

KEY = "privacy:ledger"
"""The name under which a center keeps it."""


class Overspent(Exception):
    """Why a center does not train: the request would cost more than is left."""


@dataclass(frozen=True)
class Ledger:
    """All steps that a center has performed, with equal ones counted together."""

    costs: tuple[Cost, ...] = ()

    def charged(self, costs: Sequence[Cost]) -> Ledger:
        """The ledger with further steps."""
        counts = {(c.rate, c.noise): c.steps for c in self.costs}
        for cost in costs:
            counts[cost.rate, cost.noise] = counts.get((cost.rate, cost.noise), 0) + cost.steps
        return Ledger(tuple(Cost(rate, noise, steps) for (rate, noise), steps in counts.items()))

    def epsilon(self, delta: float) -> float:
        return epsilon_of(self.costs, delta)

    def afford(self, costs: Sequence[Cost], spec: PrivacySpec) -> Ledger:
        """The ledger after `costs`. Raises `Overspent` if that would exceed the budget."""
        after = self.charged(costs)
        if after.epsilon(spec.delta) > spec.epsilon:
            raise Overspent(
                f"its privacy budget is spent: epsilon {self.epsilon(spec.delta):.2f} of {spec.epsilon:g} at "
                f"delta {spec.delta:g}, and another round would cost more than is left"
            )
        return after

    # -- as it is kept ----------------------------------------------------------------------------

    @classmethod
    def of(cls, kept: Mapping[str, Tensor]) -> Ledger:
        """Reads the ledger from what a center keeps."""
        return cls.from_rows(kept[KEY].tolist()) if KEY in kept else cls()

    def to_kept(self) -> dict[str, Tensor]:
        """float64 [n, 3]: rate, noise and steps."""
        return {KEY: torch.tensor(self.costs, dtype=torch.float64).reshape(-1, 3)}

    @classmethod
    def from_rows(cls, rows: object) -> Ledger:
        """Reads [[rate, noise, steps], …]. Anything else must not count as an empty ledger."""
        try:
            costs = tuple(Cost(float(q), float(s), int(n)) for q, s, n in rows)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            raise FedmtError("it is not a list of rates, noises and steps") from None
        if not all(0 < c.rate <= 1 and c.noise > 0 and c.steps >= 0 for c in costs):
            raise FedmtError("a rate, a noise or a number of steps in it is impossible")
        return cls(costs)
