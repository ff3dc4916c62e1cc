"""FedBN: batch-norm layers stay at their center, and everything else is averaged."""

from dataclasses import replace

import pytest
import torch

from fedmt import FedmtError
from fedmt.aggregation import FedAvg, FedBN, unpacked
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation
from fedmt.methods import FedMT, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
QUICK = Training(rounds=2, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=10,
                 warmup_epochs=2, learning_rate=0.05, batch_norm="running")  # fmt: skip
METHOD = FedMT(QUICK, VIEWS, xi=0.05)


def batch_norm_names(model):
    return {
        f"{name}.{key}"
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.BatchNorm2d)
        for key in layer.state_dict()
    }


def test_batch_norm_stays_and_the_rest_is_averaged(make_federation, make_engine):
    """Checks two rounds by hand: what each center received, sent and kept, and the result."""
    federation = make_federation(samples=20, half=True)
    # Without reference epochs, the state after a round is the mean itself.
    method = replace(METHOD, training=replace(QUICK, reference_epochs=0))
    engine = make_engine(federation, method, FedBN())
    local = batch_norm_names(engine.model)
    assert len(local) == 4 * 5  # weight, bias, mean, variance and counter of four layers
    state, _ = engine.start()
    for number in (1, 2):
        sent = []
        for center in engine.federation.centers:
            kept = state.kept.get(center.name, {})
            outcome = engine.site.center_round(center, state.weights, {}, kept, number)
            assert not local & set(outcome.update)
            assert set(unpacked("weights", outcome.kept)) == local
            sent.append(outcome.update)
        before = state
        state, _ = engine.round(before)
        for key, value in state.weights.items():
            if key in local:  # the reference center's own layers, which did not train
                assert torch.equal(value, before.weights[key])
            elif key in sent[0]:
                mean = torch.stack([u[key] for u in sent]).mean(0)
                torch.testing.assert_close(value, before.weights[key] + mean, rtol=1e-4, atol=1e-6)
                assert not torch.equal(value, before.weights[key]) or "std" in key or "mean" in key
        # No two centers have the same layers, and each center continues with its own.
        first, second = (unpacked("weights", state.kept[f"center-{i}"]) for i in (1, 2))
        for key in local:
            if "num_batches" in key:
                assert first[key] == 2 * number + before_first(before, key)
            else:
                assert not torch.equal(first[key], second[key]), key


def before_first(state, key):
    """The counter of the layer in the model of round 0. Each round of a center adds its two steps."""
    return int(state.weights[key])


def test_a_center_trains_from_its_own_layers(make_federation, make_engine):
    federation = make_federation(samples=20, half=True)
    engine = make_engine(federation, METHOD, FedBN())
    state, _ = engine.start()
    state, _ = engine.round(state)
    center = engine.federation.centers[0]
    own = engine.site.model_of(state.weights, state.kept[center.name])
    local = batch_norm_names(engine.model)
    for key, value in own.items():
        expected = state.kept[center.name][f"weights:{key}"] if key in local else state.weights[key]
        assert torch.equal(value, expected)
    # No other layers, not even the reference center's, affect what it does.
    strange = {k: v + 1 if k in local and v.is_floating_point() else v for k, v in state.weights.items()}
    one = engine.site.center_round(center, state.weights, {}, state.kept[center.name], 2)
    two = engine.site.center_round(center, strange, {}, state.kept[center.name], 2)
    assert all(torch.equal(one.update[k], two.update[k]) for k in one.update)


def test_the_tested_model_has_the_reference_centers_layers(make_federation, play):
    """After a round, its layers are those it had, trained on its own data, and never a center's."""
    federation = make_federation(samples=20, half=True)
    (_, one), _ = play(federation, METHOD, FedBN(), rounds=1)
    (_, averaged), _ = play(federation, METHOD, FedAvg(), rounds=1)
    first = "backbone.features.0.1.running_mean"
    # Six steps with momentum 0.1 after the start, only on the reference center's images.
    assert not torch.equal(one.weights[first], averaged.weights[first])
    kept = [unpacked("weights", one.kept[c.name]) for c in federation.centers]
    assert all(not torch.equal(one.weights[first], k[first]) for k in kept)
    # A center's statistics would show up here. With other images at a center, the first layer's statistics of
    # the tested model can change only through the averaged weights, and here no center trains.
    frozen = replace(METHOD, training=replace(QUICK, learning_rate=1e-30, weight_decay=0.0))
    other = replace(federation, centers=tuple(replace(c, values=255 - c.images) for c in federation.centers))
    (_, a), _ = play(federation, frozen, FedBN(), rounds=1)
    (_, b), _ = play(other, frozen, FedBN(), rounds=1)
    assert torch.equal(a.weights[first], b.weights[first])
    (_, c), _ = play(other, frozen, FedAvg(), rounds=1)
    assert not torch.equal(a.weights[first], c.weights[first])


def test_a_model_without_batch_norm_is_refused(make_federation):
    federation = make_federation(samples=20, half=True)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(196, 10))
    with pytest.raises(FedmtError, match="the model has none"):
        LocalEngine(federation, METHOD, model, strategy=FedBN())


def test_static_batch_norm_is_refused(make_federation, make_engine):
    method = replace(METHOD, training=replace(QUICK, batch_norm="static"))
    with pytest.raises(FedmtError, match=r"set training\.batch_norm = 'running'"):
        make_engine(make_federation(samples=20, half=True), method, FedBN())
