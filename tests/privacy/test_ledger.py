"""The spent budget adds up, survives being stored, and never exceeds the limit."""

import pytest
import torch

pytest.importorskip("dp_accounting")

from fedmt import FedmtError
from fedmt.privacy import Cost, Ledger, Overspent, PrivacySpec

SPEC = PrivacySpec(epsilon=2.0, delta=1e-5)


def test_equal_steps_are_counted_together_and_rounds_add_up():
    ledger = Ledger()
    for _ in range(4):
        ledger = ledger.charged([Cost(0.1, 2.0, 25), Cost(1.0, 30.0, 1)])
    assert ledger.costs == (Cost(0.1, 2.0, 100), Cost(1.0, 30.0, 4))
    assert Ledger().epsilon(1e-5) == 0.0
    assert ledger.epsilon(1e-5) > Ledger((Cost(0.1, 2.0, 100),)).epsilon(1e-5) > 0


def test_it_stops_before_the_budget_is_passed_and_says_why():
    ledger, rounds = Ledger(), 0
    with pytest.raises(Overspent, match=r"epsilon 1\.\d\d of 2 at delta 1e-05"):
        while True:
            ledger = ledger.afford([Cost(0.1, 2.0, 10)], SPEC)
            rounds += 1
    assert rounds > 2
    assert ledger.epsilon(1e-5) <= 2.0 < ledger.charged([Cost(0.1, 2.0, 10)]).epsilon(1e-5)


def test_it_is_kept_to_the_bit():
    ledger = Ledger((Cost(50 / 320, 1.2347, 96),))
    kept = ledger.to_kept()
    assert Ledger.of(kept) == ledger and Ledger.of({}) == Ledger()
    assert Ledger.of(Ledger().to_kept()) == Ledger()
    assert next(iter(kept.values())).dtype == torch.float64


@pytest.mark.parametrize("rows", [5, [[1, 2]], [["x", 1, 1]], [[0.1, -1.0, 5]], [[0.1, 1.0, -5]], None])
def test_what_is_not_a_ledger_does_not_count_as_an_empty_one(rows):
    with pytest.raises(FedmtError):
        Ledger.from_rows(rows)
