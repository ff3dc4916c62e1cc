"""FedTrans: first the centers' classes, and the reference center's labels only in the last round."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedmt.aggregation import FedAvg, unpacked
from fedmt.core.errors import FedmtError
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation
from fedmt.methods import FedTrans, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
QUICK = Training(rounds=3, local_epochs=1, batch_size=10, reference_batch_size=10, learning_rate=0.05,
                 schedule="constant")  # fmt: skip
METHOD = FedTrans(QUICK, VIEWS, fine_tune_epochs=2, fine_tune_rate=0.05)
OWN = ("backbone.fc.weight", "backbone.fc.bias")
DEPARTMENT = ("backbone.fc.others.0.weight", "backbone.fc.others.0.bias")
LAYER = ("backbone.fc.others.1.weight", "backbone.fc.others.1.bias")


def equal(one, two, keys=None):
    return all(torch.equal(one[k], two[k]) for k in keys or one)


def test_the_reference_centers_labels_wait_for_the_last_round(make_federation, play):
    federation = make_federation(samples=20, half=True)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(federation.reference)))
    reference = replace(federation.reference, labels=federation.reference.labels[order])
    states, records = play(federation, METHOD)
    others, _ = play(replace(federation, reference=reference), METHOD)
    for one, two in zip(states[:-1], others[:-1], strict=True):
        assert equal(one.weights, two.weights)
        # Nothing else changes the new layer either: no decay, no statistics.
        assert equal(one.weights, states[0].weights, OWN)
    assert not equal(states[-1].weights, others[-1].weights)
    assert [r["reference_loss"] is None for r in records] == [True, True, True, False]
    # Even then, the answer in the centers' spaces does not depend on them.
    shared, other = (unpacked("shared", s[-1].server) for s in (states, others))
    assert equal(shared, other)


def test_the_answer_in_the_centers_spaces_is_the_model_before_fine_tuning(make_federation, play, make_engine):
    """Bit-identical: the same run with a later end has the shared model after the same number of rounds."""
    federation = make_federation(samples=20, half=True)
    states, records = play(federation, METHOD)
    longer = replace(METHOD, training=replace(QUICK, rounds=4))
    going_on, before = play(federation, longer, rounds=3)
    shared = unpacked("shared", states[-1].server)
    assert shared.keys() == states[-1].weights.keys()
    assert equal(shared, going_on[-1].weights)
    for space in ("department", "layer"):
        assert records[-1]["accuracy"][space] == before[-1]["accuracy"][space]
    assert not equal(shared, states[-1].weights)
    # Recomputed with the shared model's own head, on the test images.
    engine = make_engine(federation, METHOD)
    engine.model.load_state_dict(shared)
    for head, test in enumerate(federation.tests[1:], 1):
        engine.trainer._heads.active = head
        engine.model.eval()
        with torch.no_grad():
            found = engine.model(test.images.float() / 255).argmax(1)
        right = (found == test.labels).float().mean().item()
        assert records[-1]["accuracy"][test.space.name] == pytest.approx(right)


def test_fine_tuning_leaves_the_other_heads_alone(make_federation, play):
    """They have no gradient, but weight decay would shrink them."""
    states, _ = play(make_federation(samples=20, half=True), METHOD)
    shared = unpacked("shared", states[-1].server)
    assert METHOD.training.weight_decay > 0
    assert equal(states[-1].weights, shared, (*DEPARTMENT, *LAYER))
    assert not equal(states[-1].weights, shared, OWN)


def test_a_head_is_the_mean_over_the_centers_of_its_space(make_federation, make_engine):
    federation = make_federation(departments=2, layers=1, samples=20, half=True)
    engine = make_engine(federation, METHOD, FedAvg())
    before, _ = engine.start()
    sent = {}
    for center in engine.federation.centers:
        sent[center.name] = engine.site.center_round(center, before.weights, {}, {}, 1).update
    assert all(not set(OWN) & set(u) for u in sent.values())
    assert set(DEPARTMENT) <= set(sent["center-1"]) and not set(LAYER) & set(sent["center-1"])
    assert set(LAYER) <= set(sent["center-3"]) and not set(DEPARTMENT) & set(sent["center-3"])
    after, _ = engine.round(before)
    body = "backbone.features.0.0.weight"
    for key, names in (
        *((k, ("center-1", "center-2")) for k in DEPARTMENT),
        *((k, ("center-3",)) for k in LAYER),
        (body, ("center-1", "center-2", "center-3")),
    ):
        mean = torch.stack([sent[n][key] for n in names]).mean(0)
        torch.testing.assert_close(after.weights[key], before.weights[key] + mean, rtol=1e-5, atol=1e-6)


def test_an_absent_space_keeps_its_head(make_federation, play):
    """Only centers of one space train, and weight decay must not change the head of the other."""
    federation = make_federation(samples=20, half=True)
    first, second, third = federation.centers
    silent = replace(third, name="silent", space=None, labels=None, correspondence=None)
    labeled = replace(federation, centers=(first, second, third))
    some = replace(METHOD, training=replace(QUICK, participation=0.4))
    states, records = play(labeled, some, seed=1, rounds=2)
    moved = [not equal(a.weights, b.weights, LAYER) for a, b in pairwise(states)]
    assert moved == ["losses" in r["centers"]["center-3"] for r in records[1:]]
    assert False in moved
    _, records = play(replace(federation, centers=(first, second, silent)), METHOD, rounds=1)
    assert "no labels" in records[1]["centers"]["silent"]["abstained"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_the_centers_teach_is_carried_over(make_federation, play, seed):
    """A short, gentle fine-tuning depends on the network that it starts from: with the centers' labels
    scrambled, it must end clearly worse.

    Seeds 0 to 5 measured 0.47 .. 0.56 in the wanted space and 0.32 .. 0.43 scrambled, with a smallest
    difference of 0.058. Before the fine-tuning they measured 0.05 .. 0.12, and 0.87 .. 0.90 in the centers'
    spaces. (No gain over Single was found on so few images: with enough epochs of fine-tuning, both end close
    to 0.6.)
    """
    federation = make_federation(per_class=3, departments=1, layers=1, samples=150, seed=seed, half=True)
    rng = np.random.default_rng(9)
    scrambled = replace(
        federation,
        centers=tuple(
            replace(c, labels=c.labels[torch.from_numpy(rng.permutation(len(c)))]) for c in federation.centers
        ),
    )
    training = Training(rounds=4, local_epochs=3, batch_size=25, reference_batch_size=15, learning_rate=0.1)
    method = FedTrans(training, VIEWS, fine_tune_epochs=15, fine_tune_rate=0.01)
    _, records = play(federation, method, seed=seed)
    _, control = play(scrambled, method, seed=seed)
    last, before = records[-1]["accuracy"], records[-2]["accuracy"]
    assert last["garment"] > control[-1]["accuracy"]["garment"] + 0.03
    assert last["garment"] > 0.35 > 0.2 > before["garment"]
    assert last["department"] > 0.75 and last["layer"] > 0.75


@pytest.mark.parametrize(
    ("key", "value"), [("fine_tune_epochs", 0), ("fine_tune_rate", 0.0), ("fine_tune_rate", -1.0)]
)
def test_bad_options_are_named(key, value):
    with pytest.raises(FedmtError, match=rf"method\.{key}"):
        FedTrans(**{key: value})
