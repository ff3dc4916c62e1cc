"""A membership-inference attack on a center's update succeeds, and fails with [privacy]."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("dp_accounting")

from fedmt import Federation
from fedmt.aggregation import FedAvg
from fedmt.backbones import Classifier
from fedmt.backbones.mlp import Linear
from fedmt.engines.local import LocalEngine
from fedmt.inputs import Vectors
from fedmt.methods import FedMT, Training
from fedmt.privacy import PrivacySpec

RECORDS, FEATURES, CLASSES = 80, 100, 4
TRAINING = Training(
    rounds=4,
    local_epochs=10,
    batch_size=20,
    reference_epochs=0,
    warmup_epochs=0,
    learning_rate=0.1,
    schedule="constant",
    weight_decay=0.0,
    batch_norm="static-reference",
)
ATTACKED = FedMT(TRAINING, Vectors.views())


def people(count: int, seed: int) -> tuple[Tensor, list[int]]:
    """Records with random labels, which a model can only memorize."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=rng).tolist()
    return torch.randn(count, FEATURES, generator=rng), labels


def advantage(method: FedMT) -> float:
    """How often an attacker is right who sees a record that was trained on and one that was not, and picks
    the one with the smaller loss as the trained one. Chance is 0.5. This is the area under the ROC curve of
    the loss-threshold attack (Yeom et al. 2018)."""
    members, outsiders = people(RECORDS, 1), people(RECORDS, 2)
    names = [f"class {k}" for k in range(CLASSES)]
    federation = Federation.from_arrays(names, people(8, 0), {"center": members})
    torch.manual_seed(0)
    network = Classifier(Linear(CLASSES, FEATURES), torch.zeros(1, FEATURES), torch.ones(1, FEATURES))
    engine = LocalEngine(federation, method, network, strategy=FedAvg())
    state, _ = engine.start()
    for _ in range(TRAINING.rounds):
        state, _ = engine.round(state)
    engine.trainer.load(state.weights)
    inside, outside = (
        F.nll_loss(engine.trainer.predict(x).clamp_min(1e-30).log(), torch.tensor(y), reduction="none")
        for x, y in (members, outsiders)
    )
    wins, ties = inside[:, None] < outside[None], inside[:, None] == outside[None]
    return float(wins.float().mean() + ties.float().mean() / 2)


def test_the_attack_succeeds_without_privacy_and_not_with_it():
    assert advantage(ATTACKED) > 0.9
    private = replace(ATTACKED, privacy=PrivacySpec(epsilon=1.0, delta=1e-3))
    # The standard error of the area is 0.05 with 80 records each, and epsilon 1 allows at most 0.73.
    assert abs(advantage(private) - 0.5) < 0.15
    # The noise is what helps: clipping alone, which epsilon 10,000 is close to, does not.
    assert advantage(replace(private, privacy=PrivacySpec(epsilon=1e4, delta=1e-3))) > 0.8
