"""The cost of steps of DP-SGD, and the noise that a budget requires.

A thin layer on Google's dp-accounting: privacy loss distributions, which are tight up to the width of their
grid and always on the safe side. Two sets of records are neighbors if one of them has one additional record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fedmt.core.errors import FedmtError

GRID = 1e-3
"""Width of the grid of privacy losses. A finer one, 1e-4, lowers epsilon by less than 0.02 in the cases of
the tests and takes ten times as long."""

LEAST_NOISE = 0.4
"""The smallest noise multiplier that is used. However large epsilon is, less noise does not improve
accuracy."""

UNIT = 2.0**-10
"""Noise multipliers are rounded up to a multiple of this."""


class Cost(NamedTuple):
    """Steps that each add Gaussian noise to a sum over records.

    rate: the probability that a record is in a step's batch, independently of all others. noise: its standard
    deviation, as a multiple of the largest length of a record's contribution. steps: the number of steps.
    """

    rate: float
    noise: float
    steps: int


def epsilon_of(costs: Sequence[Cost], delta: float) -> float:
    """The epsilon of all these steps together, at `delta`."""
    return _epsilon_of(tuple(costs), delta)


@lru_cache(maxsize=4096)
def _epsilon_of(costs: tuple[Cost, ...], delta: float) -> float:
    costs = tuple(cost for cost in costs if cost.steps)
    if not costs:
        return 0.0
    accounting = _accounting()
    accountant = accounting.pld.PLDAccountant(value_discretization_interval=GRID)
    return float(accountant.compose(_event(costs, accounting)).get_epsilon(delta))


@lru_cache(maxsize=1024)
def noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, beside: tuple[Cost, ...] = ()
) -> float:
    """The smallest noise with which this many steps cost at most `epsilon`, together with those in
    `beside`."""
    if beside and epsilon_of(beside, delta) >= epsilon:
        raise ValueError("the other steps already cost more than epsilon")
    low, high = LEAST_NOISE, LEAST_NOISE
    while epsilon_of((*beside, Cost(rate, high, steps)), delta) > epsilon:
        low, high = high, 2 * high
    if low == high:
        return LEAST_NOISE
    accounting = _accounting()
    found = accounting.calibrate_dp_mechanism(
        lambda: accounting.pld.PLDAccountant(value_discretization_interval=GRID),
        lambda noise: _event((*beside, Cost(rate, noise, steps)), accounting),
        epsilon,
        delta,
        accounting.ExplicitBracketInterval(low, high),
        tol=UNIT,
    )
    return math.ceil(float(found) / UNIT) * UNIT


def _event(costs: Sequence[Cost], accounting: Any) -> Any:
    """The steps in the library's notation."""
    events = []
    for cost in costs:
        step = accounting.GaussianDpEvent(cost.noise)
        if cost.rate < 1:
            step = accounting.PoissonSampledDpEvent(cost.rate, step)
        events.append(accounting.SelfComposedDpEvent(step, cost.steps))
    return accounting.ComposedDpEvent(events)


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError:
        raise FedmtError(
            "[privacy] needs dp-accounting, which is not installed: pip install 'fedmt[privacy]'."
        ) from None
    return dp_accounting
