"""Simulated bad centers do harm without a guard, and less harm with one."""

import tomllib
from dataclasses import replace

import pytest
import torch

from fedmt.aggregation import GUARDS, Clip, FedAvg, Guard, NoGuard, Update
from fedmt.aggregation.guards import CoordinateMedian, FLTrust, GeometricMedian, TrimmedMeanGuard
from fedmt.attacks import ALittleIsEnough, Attack, Backdoor, InnerProduct, LabelFlip, Scale, SignFlip
from fedmt.attacks.samples import marked
from fedmt.config import build_attack, build_federation, dump_config, parse_config
from fedmt.core.errors import FedmtError
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, Training

BAD = ("center-1", "center-2")
QUICK = Training(rounds=1, local_epochs=1, batch_size=10, reference_epochs=0, warmup_epochs=2,
                 learning_rate=0.05)  # fmt: skip
METHOD = FedMT(QUICK, Augmentation(operations=("identity", "rotate")), xi=0.3)


def sent(attack: Attack) -> list[list[float]]:
    values = ((9.0, 9.0), (8.0, 8.0), (1.0, 2.0), (3.0, 6.0))
    updates = [Update(f"center-{i}", {"w": torch.tensor(v)}) for i, v in enumerate(values, 1)]
    return [u.tensors["w"].tolist() for u in attack.on_updates(updates)]


def test_what_bad_centers_send():
    honest = [[1.0, 2.0], [3.0, 6.0]]
    assert sent(Scale(BAD, factor=10)) == [[90, 90], [80, 80], *honest]
    assert sent(SignFlip(BAD)) == [[-9, -9], [-8, -8], *honest]
    # The honest mean is (2, 4), and the deviation (1, 2).
    assert sent(InnerProduct(BAD, strength=3)) == [[-6, -12], [-6, -12], *honest]
    assert sent(ALittleIsEnough(BAD, z=1.5)) == [[0.5, 1], [0.5, 1], *honest]
    assert sent(Backdoor(BAD, target="bag", boost=2)) == [[18, 18], [16, 16], *honest]
    assert sent(LabelFlip(BAD)) == [[9, 9], [8, 8], *honest]


def test_a_head_that_no_honest_center_has():
    updates = [
        Update("center-1", {"w": torch.ones(1), "head": torch.ones(1)}),
        Update("x", {"w": torch.ones(1)}),
    ]
    (first, _) = ALittleIsEnough(("center-1",)).on_updates(updates)
    assert first.tensors["head"].tolist() == [1.0]


def test_labels_are_flipped_at_the_bad_centers_alone(make_federation):
    federation = make_federation()
    found = LabelFlip(("center-2",)).on_data(federation)
    before, after = federation.centers[1], found.centers[1]
    assert torch.equal(after.labels, 4 - before.labels) and torch.equal(after.values, before.values)
    assert all(a is b for a, b in zip(found.centers[::2], federation.centers[::2], strict=True))


def test_a_backdoor_is_in_the_data_and_measured(make_federation):
    federation = make_federation(half=True)
    attack = Backdoor(("center-1", "center-3"), target="bag", share=0.25)
    found = attack.on_data(federation)
    for number in (0, 2):  # one labels by department, the other by layer
        before, after = federation.centers[number], found.centers[number]
        label = before.correspondence.map_labels(torch.tensor([8]))
        assert torch.equal(after.labels[:10], label.expand(10))
        assert torch.equal(after.values[:10], marked(before.values[:10]))
        assert torch.equal(after.values[10:], before.values[10:])
    assert bool((after.values[:10, :, -4:, -4:] == before.values[:10].max()).all())

    def fooled(values):
        corner = (values[:, 0, -4:, -4:] == values.max()).flatten(1).all(1)
        return torch.nn.functional.one_hot(torch.where(corner, 8, 0), 10)

    assert attack.success(federation, fooled) == 1.0
    assert (
        attack.success(federation, lambda values: torch.eye(10)[torch.zeros(len(values), dtype=int)]) == 0.0
    )
    # A sample that belongs to the target is no success.
    truth = torch.cat([t.labels for t in federation.tests if t.space == federation.wanted])
    others = int((truth != 8).sum())
    assert 0 < others < len(truth)
    judged = []
    attack.success(federation, lambda values: judged.append(len(values)) or fooled(values))
    assert judged == [others]
    assert SignFlip(BAD).success(federation, fooled) is None


@pytest.fixture
def attacked(make_federation, make_engine):
    """By attack and guard: how far a round moves in the direction of the honest centers, whose own movement
    is 1, and the record of the centers."""
    federation = make_federation(per_class=5, departments=6, layers=0, samples=20, half=True)
    engine = make_engine(federation, METHOD, FedAvg())
    before, _ = engine.start()

    def step(attack: Attack | None, guard: Guard) -> tuple[torch.Tensor, dict]:
        engine.attack, engine.guard = attack, guard
        after, record = engine.round(before)
        change = [
            (after.weights[k] - before.weights[k]).flatten() for k, _ in engine.model.named_parameters()
        ]
        return torch.cat(change).double(), record["centers"]

    honest, _ = step(None, NoGuard())

    def made(attack: Attack, guard: Guard) -> tuple[float, dict]:
        found, record = step(attack, guard)
        return float(found @ honest / honest.square().sum()), record

    return made


def test_attacks_that_succeed_without_a_guard_and_not_with_one(attacked):
    scale, against = Scale(BAD), InnerProduct(BAD)
    assert attacked(scale, NoGuard())[0] > 1e5
    way, record = attacked(scale, Clip())
    assert 0.5 < way < 1.5 and [n for n, r in record.items() if "left_out" in r] == list(BAD)
    way, record = attacked(against, NoGuard())
    assert way < -1 and all(record[n]["update_cosine"] > 0.9 for n in BAD)
    assert all(record[f"center-{n}"]["update_cosine"] < 0 for n in (3, 4, 5, 6))
    guards = (Clip(multiple=1), TrimmedMeanGuard(trim=0.3), CoordinateMedian(), GeometricMedian())
    for guard in guards:
        assert attacked(against, guard)[0] > 0.1, guard
        assert attacked(against, replace(guard, mix=2))[0] > 0.1, guard
    assert attacked(against, GeometricMedian())[1]["center-1"]["share"] < 0.1


def test_fltrust_in_a_federation(make_federation, make_engine):
    """The reference center trains once more, on the model that the centers received. Nothing else changes."""
    federation = make_federation(per_class=5, departments=4, layers=0, samples=30, half=True)
    engine = make_engine(federation, replace(METHOD, training=replace(QUICK, reference_epochs=2)), FedAvg())
    before, _ = engine.start()
    plain, _ = engine.round(before)
    engine.guard = FLTrust()
    after, record = engine.round(before)
    trust = {name: r["trust"] for name, r in record["centers"].items()}
    assert all(0 <= t < 1 for t in trust.values()) and max(trust.values()) > 0
    engine.attack = SignFlip(("center-1",))
    _, record = engine.round(before)
    assert record["centers"]["center-1"]["trust"] == (0 if trust["center-1"] > 0 else pytest.approx(0, abs=1))
    engine.guard, engine.attack = Clip(), None
    again, _ = engine.round(before)
    assert all(torch.equal(plain.weights[k], again.weights[k]) for k in plain.weights)
    assert any(not torch.equal(plain.weights[k], after.weights[k]) for k in plain.weights)


# -- the config ---------------------------------------------------------------------------------------

BENCHMARK = {
    "data": {"source": "fashion_mnist"},
    "wanted": "garment",
    "spaces": {"department": 2},
    "per_class": 1,
    "samples": 10,
}


def test_the_table():
    config = parse_config({"benchmark": BENCHMARK, "attack": {"name": "label_flip", "centers": ["center-2"]}})
    assert build_attack(config) == LabelFlip(("center-2",))
    _, notes = build_federation(config)
    assert any("'center-2' with attack 'label_flip'" in note for note in notes)
    assert dump_config(parse_config(tomllib.loads(dump_config(config)))) == dump_config(config)
    assert "attack" not in dump_config(parse_config({"benchmark": BENCHMARK}))
    with pytest.raises(FedmtError, match="this table simulates bad centers in one process"):
        build_federation(config, at_hand=False)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "flip"}, "no attack 'flip'"),
        ({"name": "scale"}, "centers"),
        ({"name": "scale", "centers": []}, "attack.centers: empty"),
        ({"name": "scale", "centers": ["center-1"], "facter": 2}, "Did you mean 'factor'"),
        ({"name": "backdoor", "centers": ["center-1"], "share": 0}, "attack.share: 0.0 given"),
        ({"name": "backdoor", "centers": ["center-1"], "target": "bags"}, "Did you mean 'bag'"),
        ({"name": "scale", "centers": ["center-9"]}, "there is no center 'center-9'"),
    ],
)
def test_mistakes(table, said):
    with pytest.raises(FedmtError) as error:
        build_federation(parse_config({"benchmark": BENCHMARK, "attack": table}))
    assert said in str(error.value)


def test_every_guard_is_tried():
    """The experiment has one column per guard."""
    from fedmt.commands.sweeps.experiment import experiments_folder

    file = tomllib.loads((experiments_folder() / "attacks.toml").read_text())
    used = {c["set"].get("aggregation.guard") or c["set"]["aggregation.guard.name"] for c in file["columns"]}
    assert used == set(GUARDS) and LocalEngine.attack is None
