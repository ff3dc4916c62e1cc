"""SCAFFOLD against the published algorithm in float64, and through the engine."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.aggregation import FedAvg, RunningMean, Scaffold, packed, unpacked
from fedmt.engines.eager.sgd import FlatSGD
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation
from fedmt.methods import FedMT, FedRep, FedTrans, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
PLAIN = Training(
    rounds=9, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=20, warmup_epochs=0,
    learning_rate=0.05, momentum=0.0, nesterov=False, weight_decay=0.0, clip=0.0, schedule="constant",
    supervised_views="weak+strong",
)  # fmt: skip


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    centers=st.integers(1, 4),
    steps=st.integers(1, 4),
    rate=st.sampled_from([1.0, 0.5]),
    everybody=st.booleans(),
)
def test_rounds_follow_the_published_algorithm(seed, centers, steps, rate, everybody):
    """Least squares at each center, with controls by option II: c_i - c + (f - f_i) / (steps * lr)."""
    rng = np.random.default_rng(seed)
    data = [(rng.normal(size=(5, 3)), rng.normal(size=5)) for _ in range(centers)]
    strategy, lr = Scaffold(rate), 0.02
    f, c = rng.normal(size=3), np.zeros(3)
    own = [np.zeros(3) for _ in range(centers)]
    weights = {"w": torch.from_numpy(f.copy())}
    server: dict[str, torch.Tensor] = {}
    kept: list[dict[str, torch.Tensor]] = [{} for _ in range(centers)]
    for _ in range(4):
        size = centers if everybody else int(rng.integers(1, centers + 1))
        present = sorted(rng.permutation(centers)[:size].tolist())
        # The reference implementation.
        changes, moves = [], []
        for i in present:
            a, b = data[i]
            w = f.copy()
            for _ in range(steps):
                w = w - lr * (a.T @ (a @ w - b) - own[i] + c)
            new = own[i] - c + (f - w) / (steps * lr)
            moves.append(w - f)
            changes.append(new - own[i])
            own[i] = new
        f = f + rate * np.mean(moves, 0)
        c = c + size / centers * np.mean(changes, 0)
        # Our implementation.
        mean = RunningMean()
        for i in present:
            a, b = (torch.from_numpy(x) for x in data[i])
            parameter = torch.nn.Parameter(weights["w"].clone())
            flat = FlatSGD({"w": parameter})
            flat.restart(correction=strategy.correction(server, kept[i]), measure=True)
            for _ in range(steps):
                ((a @ parameter - b).square().sum() / 2).backward()
                flat.step(lr, 0.0, False, 0.0, 0.0)
            kept[i], sent = strategy.controls(kept[i], flat.mean_gradient())
            mean.add({"w": parameter.detach() - weights["w"], **sent}, 1.0)
        weights, server = strategy.aggregate(weights, mean.result(), server, {"w"}, {"w": size / centers})
        assert set(weights) == {"w"} and set(server) == {"control:w"}
        np.testing.assert_allclose(weights["w"], f, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(server["control:w"], c, rtol=1e-9, atol=1e-9)
        for i, mine in enumerate(own):
            found = kept[i].get("control:w", torch.zeros(3))
            np.testing.assert_allclose(found, mine, rtol=1e-9, atol=1e-9)


def test_what_is_kept_does_not_change_when_what_is_sent_is_averaged():
    """The running mean changes its inputs in place."""
    strategy, mean = Scaffold(), RunningMean()
    kept = []
    for value in (1.0, 3.0):
        mine, sent = strategy.controls({}, {"w": torch.full((2,), value)})
        kept.append(mine)
        mean.add(sent, 1.0)
    assert [k["control:w"].tolist() for k in kept] == [[1, 1], [3, 3]]


def test_the_engines_control_is_option_two(make_federation, make_engine):
    """A real network, plain SGD and several rounds, from what each center received, sent and kept."""
    federation = make_federation(samples=20, half=True)
    engine = make_engine(federation, FedTrans(PLAIN, VIEWS), Scaffold())
    state, _ = engine.start()
    for number in (1, 2, 3):
        center = engine.federation.centers[0]
        own = state.kept.get(center.name, {})
        outcome = engine.site.center_round(center, state.weights, state.server, own, number)
        c, mine = unpacked("control", state.server), unpacked("control", own)
        after, sent = unpacked("control", outcome.kept), unpacked("control", outcome.update)
        assert "backbone.fc.others.0.weight" in after and "backbone.fc.weight" not in after
        assert sent.keys() == after.keys()
        for key, control in after.items():
            zero = torch.zeros_like(control)
            before = mine.get(key, zero)
            # Two steps with rate 0.05. The update is f_i - f.
            expected = before - c.get(key, zero) - outcome.update[key] / (2 * 0.05)
            torch.testing.assert_close(control, expected, rtol=1e-3, atol=2e-5)
            torch.testing.assert_close(sent[key], control - before)
        state, _ = engine.round(state)
    assert any(float(v.abs().max()) > 1e-3 for v in unpacked("control", state.server).values())


@pytest.mark.parametrize(("method", "momentum"), [(FedTrans, 0.9), (FedRep, 0.0)])
def test_with_one_local_step_it_is_fedavg(make_federation, play, method, momentum):
    """If all centers are present with equal weight, the corrections cancel in the mean in every round."""
    federation = make_federation(samples=20, half=True)
    training = replace(
        PLAIN, batch_size=20, learning_rate=0.1, momentum=momentum, nesterov=True, weight_decay=1e-3, clip=2.0
    )
    plain, _ = play(federation, method(training, VIEWS), FedAvg(0.9), rounds=3)
    corrected, _ = play(federation, method(training, VIEWS), Scaffold(0.9), rounds=3)
    # FedRep's heads stay at their center and get no correction, so they see the same gradients.
    for one, two in zip(plain, corrected, strict=True):
        for key, value in one.weights.items():
            torch.testing.assert_close(two.weights[key], value, rtol=1e-3, atol=1e-4)
    moved = [float((plain[-1].weights[k] - v).abs().max()) for k, v in plain[0].weights.items()]
    assert max(moved) > 0.05
    assert len(unpacked("control", corrected[-1].server)) > 10


def test_with_several_steps_it_is_not(make_federation, play):
    federation = make_federation(samples=20, half=True)
    method = FedTrans(PLAIN, VIEWS)
    plain, _ = play(federation, method, FedAvg(), rounds=2)
    corrected, _ = play(federation, method, Scaffold(), rounds=2)
    parameters = [k for k in plain[0].weights if k.endswith((".weight", ".bias"))]

    def apart(number):
        return max(
            float((plain[number].weights[k] - corrected[number].weights[k]).abs().max()) for k in parameters
        )

    assert apart(1) < 1e-6  # controls start at 0
    assert apart(2) > 1e-3


def test_the_correction_has_the_published_sign():
    """c - c_i is added to the gradient, so a center steps toward what the others would do."""
    found = Scaffold().correction(
        packed("control", {"w": torch.tensor([2.0]), "new": torch.tensor([5.0])}),
        packed("control", {"w": torch.tensor([3.0])}),
    )
    assert {k: v.item() for k, v in found.items()} == {"w": -1.0, "new": 5.0}


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_under_partial_participation(make_federation, play, weights):
    """Absent centers keep their control, and c stays the mean of all controls, whatever the center sizes."""
    federation = make_federation(departments=4, layers=0, samples=40, half=True)
    cut = [
        replace(c, values=c.images[:n], labels=c.labels[:n], truth=c.truth[:n])
        for c, n in zip(federation.centers, (40, 20, 20, 10), strict=True)
    ]
    federation = replace(federation, centers=tuple(cut))
    method = FedMT(replace(PLAIN, participation=0.5, warmup_epochs=2, weights=weights), VIEWS, xi=0.05)
    states, records = play(federation, method, Scaffold(), rounds=4)
    names = [c.name for c in federation.centers]
    for before, after, record in zip(states, states[1:], records[1:], strict=False):
        trained = [n for n in names if "losses" in record["centers"][n]]
        assert len(trained) == 2
        for name in names:
            was, now = before.kept.get(name, {}), after.kept.get(name, {})
            if name not in trained:
                assert was.keys() == now.keys() and all(torch.equal(was[k], now[k]) for k in was)
        for key, c in unpacked("control", after.server).items():
            each = [after.kept.get(n, {}).get(f"control:{key}", torch.zeros_like(c)) for n in names]
            torch.testing.assert_close(c, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)
    assert any(unpacked("control", states[-1].server))


def test_a_heads_control_counts_the_centers_of_its_space(make_federation, play):
    """With three department centers and a layer center, a head's control is the mean over its own space."""
    federation = make_federation(departments=3, layers=1, samples=20, half=True)
    method = FedTrans(replace(PLAIN, rounds=9, participation=0.5), VIEWS)
    states, _ = play(federation, method, Scaffold(), rounds=4)
    spaces = [space.name for space in federation.spaces]
    seen = 0
    for state in states[1:]:
        for key, c in unpacked("control", state.server).items():
            having = federation.centers
            if ".others." in key:
                space = spaces[1 + int(key.split(".others.")[1][0])]
                having = [x for x in federation.centers if x.space is not None and x.space.name == space]
                seen += 1
            each = [state.kept.get(x.name, {}).get(f"control:{key}", torch.zeros_like(c)) for x in having]
            torch.testing.assert_close(c, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)
    assert seen
