"""FedAvg: the running mean against float64, the inputs it rejects, momentum, and memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.aggregation import FedAvg, FedAvgM, RunningMean, Weights, packed, unpacked

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32)


def random_weights(rng: np.random.Generator, scale: float = 1.0) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {"conv.weight": (2, 3), "bn.running_var": (4,), "scalar": ()}
    return {k: torch.from_numpy(np.asarray(rng.normal(0, scale, s), np.float32)) for k, s in shapes.items()}


def copied(weights: Weights) -> Weights:
    return {k: v.clone() for k, v in weights.items()}


def change(trained: Weights, received: Weights) -> Weights:
    return {k: trained[k] - received[k] for k in received}


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@quick
@given(seeds, st.integers(1, 12), st.booleans())
def test_running_mean_is_the_weighted_mean(seed: int, count: int, equal: bool) -> None:
    rng = np.random.default_rng(seed)
    received = random_weights(rng)
    trained = [random_weights(rng) for _ in range(count)]
    shares = [1.0] * count if equal else [float(w) for w in rng.integers(1, 5000, count)]
    before = [copied(w) for w in (received, *trained)]
    mean = RunningMean()
    for weights, share in zip(trained, shares, strict=True):
        assert mean.add(change(weights, received), share) is True
    assert mean.result().keys() == received.keys()
    for key, value in mean.result().items():
        updates = np.stack([w[key].double().numpy() - received[key].double().numpy() for w in trained])
        expected = np.average(updates, axis=0, weights=shares)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=3e-6)
    assert all(same(was, now) for was, now in zip(before, (received, *trained), strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["conv.weight", "bn.running_var", "scalar"])
@pytest.mark.parametrize("first", [True, False])
def test_an_update_that_is_not_finite_is_left_out(bad: float, place: str, first: bool) -> None:
    rng = np.random.default_rng(0)
    received, good, other, diverged = (random_weights(rng) for _ in range(4))
    diverged[place].view(-1)[-1] = bad
    expected, mean = RunningMean(), RunningMean()
    for weights in (good, other):
        expected.add(change(weights, received), 2.0)
    if not first:
        mean.add(change(good, received), 2.0)
    before = copied(mean.result())
    assert mean.add(change(diverged, received), 5.0) is False
    assert same(mean.result(), before)
    for weights in (good, other) if first else (other,):
        mean.add(change(weights, received), 2.0)
    assert same(mean.result(), expected.result())


def test_each_name_has_the_mean_of_the_updates_that_have_it() -> None:
    mean = RunningMean()
    mean.add({"shared": torch.tensor([1.0]), "head.a": torch.tensor([2.0])}, 1.0)
    mean.add({"shared": torch.tensor([4.0]), "head.b": torch.tensor([6.0])}, 2.0)
    mean.add({"shared": torch.tensor([4.0]), "head.b": torch.tensor([9.0])}, 1.0)
    found = {k: v.item() for k, v in mean.result().items()}
    assert found == pytest.approx({"shared": 3.25, "head.a": 2.0, "head.b": 7.0})


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


def test_memory_does_not_grow_with_the_number_of_updates() -> None:
    rng = np.random.default_rng(2)
    received = random_weights(rng)
    mean = RunningMean()
    mean.add(change(random_weights(rng), received), 1.0)
    before = live_tensors()
    storages = {k: v.data_ptr() for k, v in mean.result().items()}
    for _ in range(30):
        mean.add(change(random_weights(rng), received), 1.0)
    assert live_tensors() == before
    assert {k: v.data_ptr() for k, v in mean.result().items()} == storages


# -- the server's step ------------------------------------------------------------------------------------


def test_without_any_update_nothing_changes() -> None:
    rng = np.random.default_rng(3)
    received, server = random_weights(rng), packed("velocity", random_weights(rng))
    weights, kept = FedAvgM(0.7).aggregate(received, {}, server, ["conv.weight"])
    assert same(weights, received) and same(kept, server)


def test_plain_averaging_gives_the_mean_of_the_models() -> None:
    """With the paper's sign and scale, this test would fail."""
    received = {"w": torch.tensor([1.0, 1.0])}
    mean = RunningMean()
    for value in (2.0, 4.0):
        mean.add(change({"w": torch.tensor([value, -value])}, received), 1.0)
    weights, server = FedAvg().aggregate(received, mean.result(), {}, ["w"])
    torch.testing.assert_close(weights["w"], torch.tensor([3.0, -3.0]))
    assert server == {}


@quick
@given(seeds, st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.1, 1.0, 1.5]))
def test_momentum_over_rounds(seed: int, momentum: float, rate: float) -> None:
    rng = np.random.default_rng(seed)
    parameters = {"conv.weight", "scalar"}
    strategy = FedAvgM(rate, momentum)
    weights, server = random_weights(rng), {}
    expected = {k: v.double().numpy().copy() for k, v in weights.items()}
    speed = {k: np.zeros_like(v) for k, v in expected.items()}
    for _ in range(4):
        update = random_weights(rng, 0.1)
        before = copied(weights), copied(server), copied(update)
        new_weights, new_server = strategy.aggregate(weights, update, server, parameters)
        assert all(same(a, b) for a, b in zip(before, (weights, server, update), strict=True))
        for key, step in update.items():
            if key in parameters:
                speed[key] = momentum * speed[key] + step.double().numpy()
                expected[key] = expected[key] + rate * speed[key]
            else:  # buffers get the plain mean, without momentum or rate
                expected[key] = expected[key] + step.double().numpy()
        weights, server = new_weights, new_server
        assert set(unpacked("velocity", server)) == parameters
        for key in expected:
            np.testing.assert_allclose(weights[key].numpy(), expected[key], rtol=1e-5, atol=1e-5)
        for key, value in unpacked("velocity", server).items():
            np.testing.assert_allclose(value.numpy(), speed[key], rtol=1e-5, atol=1e-5)


def test_a_variance_stays_between_those_of_the_centers() -> None:
    """With momentum on buffers, a falling variance would become negative."""
    weights: Weights = {"bn.weight": torch.ones(1), "bn.running_var": torch.tensor([1.0])}
    server: Weights = {}
    for target in (0.2, 0.1, 0.1):
        trained = {"bn.weight": torch.ones(1), "bn.running_var": torch.tensor([target])}
        weights, server = FedAvgM(1.0, 0.9).aggregate(
            weights, change(trained, weights), server, {"bn.weight"}
        )
        torch.testing.assert_close(weights["bn.running_var"], torch.tensor([target]))
