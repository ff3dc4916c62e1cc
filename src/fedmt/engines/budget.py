"""What happens before a private center trains in a round: whether it can afford the round, and how much noise
it adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmt.data.center import Center
from fedmt.engines.eager.private import Noising
from fedmt.engines.randomness import random_numbers
from fedmt.methods.base import Method
from fedmt.methods.sampling import Sampling
from fedmt.privacy import Cost, Ledger, Overspent, PrivacySpec
from fedmt.privacy.accounting import noise_multiplier
from fedmt.privacy.secret import secret_generator, secret_normal

Charge = Callable[[Mapping[str, Tensor], Sequence[Cost], PrivacySpec], Ledger]
"""Takes what the center keeps, the cost of a round and its promise. Returns its ledger including that round,
or raises `Overspent`. It is called before anything is computed from the data."""


def charge_kept(kept: Mapping[str, Tensor], costs: Sequence[Cost], spec: PrivacySpec) -> Ledger:
    """Keeps the ledger with the center's other memory. For simulations, where a repeated round is the same
    round."""
    return Ledger.of(kept).afford(costs, spec)


@dataclass(frozen=True, eq=False)
class Allowed:
    """A round that the center can afford: its generator, its noise, and what it will have spent."""

    rng: np.random.Generator
    noising: Noising
    ledger: Ledger
    spent: float


@dataclass(frozen=True)
class Budget:
    """seed: the seed of a simulation, which determines everything. None: between machines, where nobody else
    may be able to repeat the numbers."""

    seed: int | None
    charge: Charge = charge_kept

    def allow(self, method: Method, center: Center, kept: Mapping[str, Tensor], number: int) -> Allowed:
        """The center's round with this number. Raises `Overspent` if it would exceed the budget."""
        spec = method.privacy
        assert spec is not None
        method.check_private_center(
            center
        )  # checked in every round, because a coordinator need not check before it asks
        sampling = Sampling.of(spec, method.training, len(center))
        noise = planned_noise(method, len(center))
        ledger = self.charge(kept, [Cost(sampling.rate, noise, sampling.steps)], spec)
        rng = secret_generator()
        normal: Callable[[int], Tensor] = secret_normal
        if self.seed is not None:
            rng = random_numbers(self.seed, number, center.name)
            normal = _repeatable(random_numbers(self.seed, number, f"noise of {center.name}"))
        return Allowed(
            rng, Noising(spec.clip, noise, sampling.expected, normal), ledger, ledger.epsilon(spec.delta)
        )


def planned_noise(method: Method, records: int) -> float:
    """The noise multiplier at which all rounds of the run together cost the promised epsilon."""
    spec = method.privacy
    assert spec is not None
    sampling = Sampling.of(spec, method.training, records)
    return noise_multiplier(spec.epsilon, spec.delta, sampling.rate, method.training.rounds * sampling.steps)


def privacy_notes(method: Method, centers: Sequence[Center]) -> tuple[str, ...]:
    """A note for the user: what is promised, with how much noise, and what a private center goes without."""
    spec = method.privacy
    if spec is None or not centers or not method.schedule.centers_train:
        return ()
    noises = [planned_noise(method, len(center)) for center in centers]
    least, most = f"{min(noises):.2f}", f"{max(noises):.2f}"
    between = least if least == most else f"{least} to {most}"
    return (
        f"[privacy]: over {method.training.rounds} rounds, each record of a center has epsilon "
        f"{spec.epsilon:g} at delta {spec.delta:g} (noise multiplier {between}). The reference "
        "center's records are not covered.",
        "[privacy]: private centers mix a sample only with its own views, assume equally frequent classes "
        "unless method.prior lists their shares, never abstain, and record only what they spent.",
    )


def _repeatable(rng: np.random.Generator) -> Callable[[int], Tensor]:
    return lambda count: torch.from_numpy(rng.standard_normal(count, dtype=np.float32))


__all__ = ["Allowed", "Budget", "Charge", "Overspent", "charge_kept", "planned_noise", "privacy_notes"]
