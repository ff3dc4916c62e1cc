"""The accountant against exact formulas, published figures and another library."""

import math
import sys
import warnings

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

pytest.importorskip("dp_accounting")

import dp_accounting

from fedmt import FedmtError
from fedmt.privacy.accounting import LEAST_NOISE, Cost, epsilon_of, noise_multiplier


def rdp(cost: Cost, delta: float) -> float:
    accountant = dp_accounting.rdp.RdpAccountant()
    step = dp_accounting.PoissonSampledDpEvent(cost.rate, dp_accounting.GaussianDpEvent(cost.noise))
    return accountant.compose(step, cost.steps).get_epsilon(delta)


@pytest.mark.parametrize(("noise", "steps", "delta"), [(1.0, 1, 1e-5), (6.0, 30, 1e-5), (20.0, 400, 1e-6)])
def test_without_sampling_it_is_the_exact_formula(noise, steps, delta):
    """Balle and Wang 2018, theorem 8, for the composition, which is one Gaussian mechanism with
    mu = sqrt(steps) / noise."""
    mu = math.sqrt(steps) / noise

    def excess(epsilon):
        tail = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return norm.cdf(mu / 2 - epsilon / mu) - tail - delta

    exact = brentq(excess, 0, 50)
    assert exact <= epsilon_of([Cost(1.0, noise, steps)], delta) <= exact + 0.005


def test_it_is_tighter_than_renyi():
    """A mechanism for which the literature's accountants give 4.04 (Renyi) and 3.50 (loss distributions)."""
    cost = Cost(rate=0.05, noise=1.0, steps=100)
    assert round(rdp(cost, 1e-5), 2) == 4.04
    assert round(epsilon_of([cost], 1e-5), 2) == 3.50


@pytest.mark.parametrize(
    ("cost", "published"),
    [
        # Abadi et al. 2016, section 3.2: q = 0.01, sigma = 4, 10,000 steps, with their moments accountant.
        (Cost(0.01, 4.0, 10_000), 1.26),
        # TensorFlow Privacy, tutorials/README.md, "Select Parameters": MNIST (60,000), batches of 256; Renyi.
        (Cost(256 / 60_000, 1.12, 60 * 60_000 // 256), 2.92),
        (Cost(256 / 60_000, 0.6, 30 * 60_000 // 256), 9.74),
        (Cost(256 / 60_000, 1.2, 10 * 60_000 // 256), 1.20),
    ],
)
def test_published_bounds_are_bounds_and_not_far(cost, published):
    """They are looser than today's bounds, but by less than two fifths."""
    found = epsilon_of([cost], 1e-5)
    assert 0.6 * published < found < published


@pytest.mark.parametrize(
    ("cost", "delta"),
    # The first is the example on the PRV accountant's own page (Gopi, Lee and Wutschitz 2021).
    [(Cost(0.005, 0.8, 1000), 1e-6), (Cost(0.05, 1.0, 100), 1e-5), (Cost(0.01, 1.3, 3000), 1e-5)],
)
def test_another_library_agrees(cost, delta):
    """Opacus's PRV accountant is another implementation with another method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountants = pytest.importorskip("opacus.accountants")
        other = accountants.PRVAccountant()
        other.history = [(cost.noise, cost.rate, cost.steps)]
        found = other.get_epsilon(delta, eps_error=0.01)
    assert epsilon_of([cost], delta) == pytest.approx(found, abs=0.02)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_noise_keeps_the_budget_and_hardly_less_would(epsilon):
    rate, steps = 0.05, 200
    noise = noise_multiplier(epsilon, 1e-5, rate, steps)
    assert 0.97 * epsilon < epsilon_of([Cost(rate, noise, steps)], 1e-5) <= epsilon
    assert epsilon_of([Cost(rate, noise - 0.01, steps)], 1e-5) > epsilon
    assert noise_multiplier(1000.0, 1e-5, rate, steps) == LEAST_NOISE


def test_noise_beside_other_costs_keeps_the_whole_budget():
    beside = (Cost(1.0, 40.0, 30),)
    noise = noise_multiplier(2.0, 1e-5, 0.05, 200, beside)
    assert epsilon_of([*beside, Cost(0.05, noise, 200)], 1e-5) <= 2.0
    assert noise > noise_multiplier(2.0, 1e-5, 0.05, 200)
    with pytest.raises(ValueError, match="already"):
        noise_multiplier(0.1, 1e-5, 0.05, 200, beside)


def test_at_five_thousand_records_the_noise_is_as_large_as_expected():
    """30 rounds of one epoch with batches of 250 need noise multipliers of 1.2 to 6 for epsilon 8 to 1."""
    found = [noise_multiplier(epsilon, 1e-5, 250 / 5000, 30 * 20) for epsilon in (8.0, 1.0)]
    assert 1.0 < found[0] < 1.4 and 3.0 < found[1] < 6.0


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FedmtError, match=r"pip install 'fedmt\[privacy\]'"):
        epsilon_of([Cost(0.5, 3.21, 4)], 1e-5)
