"""FedProx: the step with its proximal term against float64, the case mu = 0, and the purpose of mu."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.aggregation import FedAvg, FedProx
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.core.errors import FedmtError
from fedmt.engines.eager.sgd import FlatSGD
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation
from fedmt.methods import FedMT, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
QUICK = Training(rounds=2, local_epochs=2, batch_size=10, reference_epochs=1, reference_batch_size=10,
                 warmup_epochs=2, learning_rate=0.05)  # fmt: skip


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    mu=st.sampled_from([0.0, 0.01, 1.0]),
    momentum=st.sampled_from([0.0, 0.9]),
    nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 0.01]),
    clip=st.sampled_from([0.0, 0.5]),
)
def test_steps_follow_the_equations(seed, mu, momentum, nesterov, decay, clip):
    """Least squares, because its gradient is known: A^T (A w - b)."""
    rng = np.random.default_rng(seed)
    a, b, w = rng.normal(size=(6, 4)), rng.normal(size=6), rng.normal(size=4)
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
    flat = FlatSGD({"w": parameter})
    flat.restart(proximal=mu)
    anchor, velocity, rate = w.copy(), np.zeros(4), 0.03
    for _ in range(5):
        residual = torch.from_numpy(a) @ parameter - torch.from_numpy(b)
        (residual.square().sum() / 2).backward()
        flat.step(rate, momentum, nesterov, decay, clip)
        g = a.T @ (a @ w - b)
        if clip:
            g = g * min(1, clip / np.linalg.norm(g))
        g = g + mu * (w - anchor) + decay * w
        velocity = momentum * velocity + g
        w = w - rate * (g + momentum * velocity if nesterov else velocity)
        np.testing.assert_allclose(parameter.detach(), w, rtol=1e-4, atol=1e-5)


def test_the_term_is_the_gradient_of_the_penalty():
    """Adds mu / 2 |w - f|^2 to the loss of a real network, with autograd and torch's own SGD."""
    torch.manual_seed(0)
    ours = SmallCNN(10).to(memory_format=torch.channels_last)
    theirs, received = copy.deepcopy(ours), copy.deepcopy(ours)
    flat = FlatSGD(dict(ours.named_parameters()))
    flat.restart(proximal=0.7)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05)
    for _ in range(4):
        images, labels = torch.rand(8, 1, 14, 14), torch.randint(10, (8,))
        torch.nn.functional.cross_entropy(ours(images), labels).backward()
        flat.step(0.05, 0.0, False, 0.0, 0.0)
        optimizer.zero_grad()
        pairs = zip(theirs.parameters(), received.parameters(), strict=True)
        penalty = sum((w - f.detach()).square().sum() for w, f in pairs)
        (torch.nn.functional.cross_entropy(theirs(images), labels) + 0.7 / 2 * penalty).backward()
        optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_without_mu_it_is_fedavg_and_with_it_centers_stay_nearer(make_federation, make_engine, play):
    federation = make_federation(samples=30, half=True)
    method = FedMT(QUICK, VIEWS, xi=0.3)
    (*_, plain), _ = play(federation, method, FedAvg())
    (*_, zero), _ = play(federation, method, FedProx(mu=0.0))
    assert all(torch.equal(plain.weights[k], zero.weights[k]) for k in plain.weights)

    def distance(strategy):
        engine = make_engine(federation, method, strategy)
        state, _ = engine.start()
        outcome = engine.site.center_round(engine.federation.centers[0], state.weights, {}, {}, 1)
        trained = [v for k, v in outcome.update.items() if k in dict(engine.model.named_parameters())]
        return sum(float(v.square().sum()) for v in trained) ** 0.5

    free, held, fast = distance(FedProx(mu=0.0)), distance(FedProx(mu=1.0)), distance(FedProx(mu=10.0))
    assert free > held > fast > 0


def test_the_reference_center_is_not_held(make_federation, play):
    """Procedure A is not a center's training, so mu changes nothing if no center trains."""
    federation = make_federation(samples=20, half=True)
    method = FedMT(replace(QUICK, dropouts=0.999), VIEWS)  # all drop out
    (*_, plain), records = play(federation, method, FedAvg(), rounds=1)
    (*_, prox), _ = play(federation, method, FedProx(mu=1.0), rounds=1)
    assert all("absent" in c for c in records[1]["centers"].values())
    assert all(torch.equal(plain.weights[k], prox.weights[k]) for k in plain.weights)


def test_a_negative_mu_is_named():
    with pytest.raises(FedmtError, match=r"aggregation\.mu"):
        FedProx(mu=-0.1)
