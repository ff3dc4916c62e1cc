"""FedAdam and FedYogi over rounds, against their equations in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.aggregation import FedAdam, FedYogi, unpacked
from fedmt.core.errors import FedmtError

SHAPES = {"conv.weight": (2, 3), "fc.bias": (4,), "bn.running_var": (3,)}
PARAMETERS = {"conv.weight", "fc.bias"}


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    rate=st.sampled_from([0.01, 0.3]),
    beta_1=st.sampled_from([0.0, 0.9]),
    beta_2=st.sampled_from([0.5, 0.99]),
    tau=st.sampled_from([1e-3, 0.1]),
)
def test_the_server_follows_the_equations(kind, seed, rate, beta_1, beta_2, tau):
    rng = np.random.default_rng(seed)
    strategy = kind(rate=rate, beta_1=beta_1, beta_2=beta_2, tau=tau)
    f = {k: rng.normal(size=s) for k, s in SHAPES.items()}
    m = {k: np.zeros(SHAPES[k]) for k in PARAMETERS}
    v = {k: np.full(SHAPES[k], tau**2) for k in PARAMETERS}
    weights = {k: torch.from_numpy(x.astype(np.float32)) for k, x in f.items()}
    f = {k: x.numpy().astype(np.float64) for k, x in weights.items()}
    server: dict[str, torch.Tensor] = {}
    for _ in range(5):
        # The updates have very different sizes, so that v has to fall as well as rise.
        scale = 10 ** rng.uniform(-3, 0)
        update = {k: torch.from_numpy(rng.normal(0, scale, s).astype(np.float32)) for k, s in SHAPES.items()}
        before = {k: x.clone() for k, x in {**weights, **server, **update}.items()}
        new, new_server = strategy.aggregate(weights, update, server, PARAMETERS)
        assert all(torch.equal(before[k], x) for k, x in {**weights, **server, **update}.items())
        weights, server = new, new_server
        for k, tensor in update.items():
            d = tensor.numpy().astype(np.float64)
            if k not in PARAMETERS:
                f[k] = f[k] + d
                continue
            m[k] = beta_1 * m[k] + (1 - beta_1) * d
            if kind is FedAdam:
                v[k] = beta_2 * v[k] + (1 - beta_2) * d**2
            else:
                v[k] = v[k] - (1 - beta_2) * d**2 * np.sign(v[k] - d**2)
            f[k] = f[k] + rate * m[k] / (np.sqrt(v[k]) + tau)
        assert set(unpacked("m", server)) == set(unpacked("v", server)) == PARAMETERS
        for k in PARAMETERS:
            np.testing.assert_allclose(unpacked("m", server)[k], m[k], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(unpacked("v", server)[k], v[k], rtol=1e-3, atol=1e-9)
        for k, x in f.items():
            np.testing.assert_allclose(weights[k], x, rtol=1e-4, atol=1e-4)


def test_where_the_two_differ():
    """If v is far above d^2, Adam's v falls by a share of itself, and Yogi's only by a share of d^2."""
    server = {"m:w": torch.zeros(1), "v:w": torch.ones(1)}
    small = {"w": torch.full((1,), 0.01)}
    _, adam = FedAdam(beta_2=0.9).aggregate({"w": torch.zeros(1)}, small, server, {"w"})
    _, yogi = FedYogi(beta_2=0.9).aggregate({"w": torch.zeros(1)}, small, server, {"w"})
    assert adam["v:w"].item() == pytest.approx(0.9 + 0.1 * 1e-4)
    assert yogi["v:w"].item() == pytest.approx(1 - 0.1 * 1e-4)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_a_head_that_no_center_sent_stays_with_its_moments(kind):
    weights = {"a": torch.ones(2), "b": torch.ones(2)}
    weights, server = kind().aggregate(weights, {"a": torch.ones(2), "b": torch.ones(2)}, {}, {"a", "b"})
    after, later = kind().aggregate(weights, {"a": torch.ones(2)}, server, {"a", "b"})
    assert torch.equal(after["b"], weights["b"]) and not torch.equal(after["a"], weights["a"])
    assert torch.equal(later["m:b"], server["m:b"]) and torch.equal(later["v:b"], server["v:b"])


@pytest.mark.parametrize(
    ("options", "key"), [({"tau": 0.0}, "tau"), ({"beta_1": 1.0}, "beta_1"), ({"beta_2": -0.1}, "beta_2")]
)
def test_bad_options_are_named(options, key):
    with pytest.raises(FedmtError, match=f"aggregation.{key}"):
        FedYogi(**options)
