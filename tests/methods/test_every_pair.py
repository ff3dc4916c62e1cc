"""Every method with every strategy runs and resumes from a checkpoint bit-identically, or says why not."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from fedmt import Correspondence
from fedmt.aggregation import STRATEGIES, FedAvg, FedAvgM, Scaffold
from fedmt.core.errors import FedmtError
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import METHODS, FedMT, FedRep, FedTrans, SemiFL, Single, Training
from fedmt.runs.folder import RunFolder

VIEWS = Augmentation(operations=("identity", "rotate"))
TINY = Training(rounds=2, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=10,
                warmup_epochs=1, learning_rate=0.05)  # fmt: skip
OPTIONS = {"fedmt": {"xi": 0.05}, "semifl": {"xi": 0.05}, "fedtrans": {"fine_tune_epochs": 1}}

REFUSED = {
    **{("single", name): "averages nothing" for name in STRATEGIES if name != "fedavgm"},
    ("fedtrans", "fedbn"): "none of its own",
}


def made(method: str, strategy: str):
    training = replace(TINY, batch_norm="running") if strategy == "fedbn" else TINY
    return METHODS[method](training, VIEWS, **OPTIONS.get(method, {})), STRATEGIES[strategy]()


def flat(state):
    found = {f"weights/{k}": v for k, v in state.weights.items()}
    found |= {f"server/{k}": v for k, v in state.server.items()}
    return found | {f"kept/{c}/{k}": v for c, kept in state.kept.items() for k, v in kept.items()}


def assert_same(one, two):
    a, b = flat(one), flat(two)
    assert one.round == two.round and a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("method", METHODS)
def test_it_runs_and_resumes_or_is_refused(make_federation, make_engine, tmp_path, method, strategy):
    federation = make_federation(per_class=2, samples=20, half=True)
    pair = made(method, strategy)
    if (method, strategy) in REFUSED:
        with pytest.raises(FedmtError, match=f"'{strategy}' .*{REFUSED[method, strategy]}"):
            make_engine(federation, *pair)
        return
    engine = make_engine(federation, *pair)
    state, _ = engine.start()
    middle, record = engine.round(state)
    end, record = engine.round(middle)
    assert all(bool(v.isfinite().all()) for v in flat(end).values())
    assert {"garment", "department", "layer"} <= set(record["accuracy"])
    moved = [k for k in end.weights if not torch.equal(end.weights[k], state.weights[k])]
    assert "backbone.features.0.0.weight" in moved
    if method != "single":
        assert all("losses" in c for c in record["centers"].values())
    # Another process that knows only the checkpoint.
    folder = RunFolder.create(tmp_path / "run", "seed = 0\n")
    folder.save(middle)
    read = folder.load()
    assert_same(middle, read)
    again, repeated = make_engine(federation, *pair).round(read)
    assert_same(end, again)
    assert repeated["accuracy"] == record["accuracy"]


@pytest.mark.parametrize("estimator", ["em", "counting", "learnable"])
@pytest.mark.parametrize("average", [False, True])
def test_estimates_survive_a_checkpoint(make_federation, make_engine, tmp_path, estimator, average):
    federation = make_federation(per_class=2, samples=20, half=True)
    method = FedMT(
        TINY,
        VIEWS,
        xi=0.05,
        correspondence="estimated",
        estimator=estimator,
        average=average,
        projection="all",
    )
    engine = make_engine(federation, method)
    middle, _ = engine.round(engine.start()[0])
    kept = {"correspondence", "estimates", "prior"}
    assert set(middle.kept["center-1"]) == (kept | {"mean"} if average else kept)
    folder = RunFolder.create(tmp_path / "run", "seed = 0\n")
    folder.save(middle)
    end, _ = engine.round(middle)
    assert_same(end, make_engine(federation, method).round(folder.load())[0])


def test_the_table_knows_every_name():
    assert len(METHODS) == 5 and len(STRATEGIES) == 8
    assert {m for m, _ in REFUSED} <= set(METHODS) and {s for _, s in REFUSED} <= set(STRATEGIES)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "single"])
def test_fedbn_with_static_batch_norm_is_refused(method, make_federation, make_engine):
    federation = make_federation(per_class=2, samples=20, half=True)
    for mode in ("static", "static-reference"):
        training = replace(TINY, batch_norm=mode)
        with pytest.raises(FedmtError, match=f"batch_norm = '{mode}'"):
            make_engine(federation, METHODS[method](training, VIEWS), STRATEGIES["fedbn"]())


def test_a_center_name_with_strange_characters_survives_a_checkpoint(make_federation, make_engine, tmp_path):
    federation = make_federation(samples=20, half=True)
    first, *others = federation.centers
    federation = replace(federation, centers=(replace(first, name="north/east: 1"), *others))
    engine = make_engine(federation, FedRep(TINY, VIEWS), Scaffold())
    state, _ = engine.round(engine.start()[0])
    folder = RunFolder.create(tmp_path / "run", "seed = 0\n")
    folder.save(state)
    assert_same(state, folder.load())


def test_a_checkpoint_of_an_older_format_says_so(make_federation, make_engine, tmp_path):
    engine = make_engine(make_federation(samples=20, half=True), Single(TINY, VIEWS))
    folder = RunFolder.create(tmp_path / "run", "seed = 0\n")
    folder.save(engine.start()[0])
    (path,) = folder.checkpoints.iterdir()
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {**metadata, "format": "fedmt-1"})
    with pytest.raises(FedmtError) as error:
        folder.load()
    for words in ("another version of fedmt", "format fedmt-1", "another --out", str(path)):
        assert words in str(error.value)
    assert "damaged" not in str(error.value)


# -- centers without labels, and with the wanted ones ------------------------------------------------------


@pytest.fixture
def mixed(make_federation):
    """One center without labels, one that labels in the wanted space, one in another."""
    whole = make_federation(samples=20, half=True)
    first, second, third = whole.centers
    return replace(
        whole,
        centers=(
            replace(first, name="none", space=None, labels=None, correspondence=None),
            replace(second, name="same", space=whole.wanted, labels=second.truth, correspondence=None),
            replace(third, name="other"),
        ),
    )


@pytest.mark.parametrize("method", [FedTrans, FedRep])
def test_a_center_without_labels_abstains_from_supervised_methods(mixed, play, method):
    (_, after), records = play(mixed, method(TINY, VIEWS), FedAvg(), rounds=1)
    centers = records[1]["centers"]
    assert f"{method.name} learns from labels alone" in centers["none"]["abstained"]
    assert "losses" in centers["same"] and "losses" in centers["other"]
    assert after.kept["none"] == {}
    # It does not affect the mean either: without it, the weights are the same.
    fewer = replace(mixed, centers=tuple(c for c in mixed.centers if c.name != "none"))
    training = replace(TINY, batch_norm="static-reference")
    (_, one), _ = play(mixed, method(training, VIEWS), FedAvg(), rounds=1)
    (_, two), _ = play(fewer, method(training, VIEWS), FedAvg(), rounds=1)
    assert all(torch.equal(one.weights[k], two.weights[k]) for k in one.weights)


@pytest.mark.parametrize("method", [FedMT, SemiFL])
def test_a_center_without_labels_trains_on_its_guesses(mixed, play, method):
    _, records = play(mixed, method(TINY, VIEWS, xi=0.05), FedAvg(), rounds=1)
    losses = records[1]["centers"]["none"]["losses"]
    assert losses["fix"] > 0 and losses["mix"] > 0
    assert losses.get("projection", 0) == pytest.approx(0, abs=1e-6)


def test_a_center_in_the_wanted_space_trains_the_wanted_head(mixed, make_engine):
    own, other = "backbone.fc.weight", "backbone.fc.others.0.weight"
    same = next(c for c in mixed.centers if c.name == "same")
    assert same.correspondence == Correspondence.identity(mixed.wanted)
    engine = make_engine(mixed, FedTrans(TINY, VIEWS), FedAvg())
    state, _ = engine.start()
    outcome = engine.site.center_round(same, state.weights, {}, {}, 1)
    assert own in outcome.update and other not in outcome.update
    after, record = engine.round(state)
    # This is the only center that sends it.
    torch.testing.assert_close(after.weights[own], state.weights[own] + outcome.update[own])
    # In FedRep, it has its own head, which is neither sent nor the reference center's.
    engine = make_engine(mixed, FedRep(TINY, VIEWS), FedAvg())
    state, _ = engine.start()
    after, record = engine.round(state)
    assert set(after.kept["same"]) == {"weights:backbone.fc.weight", "weights:backbone.fc.bias"}
    assert not torch.equal(after.kept["same"][f"weights:{own}"], after.weights[own])
    assert set(record["accuracy"]) == {"garment", "layer"}  # spaces of the test sets in which a head answers


def test_a_center_in_the_wanted_space_uses_its_labels_in_fedmt_and_not_in_semifl(mixed, play):
    labels = {c.name: c.labels for c in mixed.centers}["same"]
    wrong = replace(
        mixed,
        centers=tuple(replace(c, labels=(labels + 1) % 10) if c.name == "same" else c for c in mixed.centers),
    )
    for method, differs in ((FedMT, True), (SemiFL, False)):
        (_, one), _ = play(mixed, method(TINY, VIEWS, xi=0.05), FedAvgM(), rounds=1)
        (_, two), _ = play(wrong, method(TINY, VIEWS, xi=0.05), FedAvgM(), rounds=1)
        assert any(not torch.equal(one.weights[k], two.weights[k]) for k in one.weights) is differs
