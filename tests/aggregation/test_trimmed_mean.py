"""The trimmed mean against float64, and its purpose: no single center's update decides the result."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmt.aggregation import FedAvg, NoGuard, TrimmedMean
from fedmt.core.errors import FedmtError
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, Training

VIEWS = Augmentation(operations=("identity", "rotate"))
QUICK = Training(rounds=1, local_epochs=1, batch_size=10, reference_epochs=0, warmup_epochs=2,
                 learning_rate=0.05)  # fmt: skip


def combined(strategy, updates, weights=None):
    accumulator = strategy.accumulator()
    for update, weight in zip(updates, weights or [1.0] * len(updates), strict=True):
        assert accumulator.add({k: v.clone() for k, v in update.items()}, weight)
    return accumulator.result()


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 12),
    trim=st.sampled_from([0.0, 0.07, 0.1, 0.2, 0.25, 0.3, 0.4, 0.49]),
    equal=st.booleans(),
)
def test_it_is_the_mean_of_the_middle(seed, count, trim, equal):
    rng = np.random.default_rng(seed)
    shapes = {"conv.weight": (2, 3, 1, 2), "bn.running_var": (4,), "scalar": ()}
    updates = [{k: torch.from_numpy(np.asarray(rng.normal(size=s), np.float32)) for k, s in shapes.items()}
               for _ in range(count)]  # fmt: skip
    weights = [1.0] * count if equal else [float(w) for w in rng.integers(1, 500, count)]
    found = combined(TrimmedMean(trim=trim), updates, weights)
    cut = min(math.ceil(round(trim * count, 6)), (count - 1) // 2)
    for key, shape in shapes.items():
        values = np.stack([u[key].double().numpy() for u in updates])
        order = values.argsort(0)[cut : count - cut]
        middle = np.take_along_axis(values, order, 0)
        expected = np.average(middle, axis=0, weights=np.asarray(weights)[order])
        assert found[key].shape == shape
        np.testing.assert_allclose(found[key].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_each_name_is_trimmed_among_those_who_sent_it():
    accumulator = TrimmedMean(trim=0.3).accumulator()
    for shared, head in ((1.0, None), (2.0, 5.0), (3.0, 7.0), (100.0, None)):
        update = {"shared": torch.tensor([shared])}
        accumulator.add(update if head is None else {**update, "head": torch.tensor([head])}, 1.0)
    assert {k: v.item() for k, v in accumulator.result().items()} == {"shared": 2.5, "head": 6.0}
    assert accumulator.counts == {"shared": 4, "head": 2}
    assert not accumulator.add({"shared": torch.tensor([math.nan])}, 1.0)
    assert accumulator.result()["shared"].item() == 2.5


def test_without_an_update_the_model_stays():
    assert TrimmedMean().accumulator().result() == {}


@given(seed=st.integers(0, 2**32), attacker=st.integers(0, 4))
def test_one_update_a_million_times_too_large_does_not_move_it(seed, attacker):
    generator = torch.Generator().manual_seed(seed)
    updates = [{"w": torch.randn(50, generator=generator)} for _ in range(5)]
    honest = torch.stack([u["w"] for i, u in enumerate(updates) if i != attacker])
    updates[attacker] = {"w": 1e6 * updates[attacker]["w"]}
    found = combined(TrimmedMean(trim=0.2), updates)["w"]
    assert bool((found >= honest.amin(0)).all()) and bool((found <= honest.amax(0)).all())
    assert combined(FedAvg(), updates)["w"].abs().max() > 1000


@pytest.mark.parametrize("strategy", [FedAvg(), TrimmedMean(trim=0.25)], ids=["fedavg", "trimmed_mean"])
def test_an_attack_on_a_federation(make_federation, make_engine, monkeypatch, strategy):
    """One of four centers multiplies its update by a million, which the reference center cannot repair."""
    federation = make_federation(per_class=5, departments=4, layers=0, samples=30, half=True)
    engine = make_engine(federation, FedMT(QUICK, VIEWS, xi=0.3), strategy)
    engine.guard = NoGuard()
    before, _ = engine.start()
    add = LocalEngine._add

    def attacked(self, name, update, *rest):
        factor = 1e6 if name == "center-2" else 1.0
        return add(self, name, {k: factor * v for k, v in update.items()}, *rest)

    honest, _ = engine.round(before)
    monkeypatch.setattr(LocalEngine, "_add", attacked)
    after, _ = engine.round(before)

    def distance(one, two):
        keys = dict(engine.model.named_parameters())
        return math.sqrt(sum(float((one.weights[k] - two.weights[k]).square().sum()) for k in keys))

    step = distance(honest, before)
    if isinstance(strategy, TrimmedMean):
        assert 0 < distance(after, honest) < step
    else:
        assert distance(after, honest) > 1000 * step


@pytest.mark.parametrize("trim", [-0.1, 0.5, 1.0])
def test_a_share_that_leaves_nobody_is_named(trim):
    with pytest.raises(FedmtError, match=r"aggregation\.trim"):
        TrimmedMean(trim=trim)
