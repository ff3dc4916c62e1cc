"""The engine's promises: bit-identical runs, order and absence do not matter, and abstaining is harmless."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmt import Center, Correspondence, Federation, FedmtError, LabelSpace
from fedmt.aggregation import FedAvg, Scaffold
from fedmt.attacks import Scale
from fedmt.engines.device import pick_device
from fedmt.engines.local import LocalEngine
from fedmt.engines.randomness import random_numbers
from fedmt.engines.state import State
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation
from fedmt.methods import CenterRound, FedMT, Single, Training

QUICK = Training(
    rounds=3,
    local_epochs=1,
    batch_size=10,
    reference_epochs=2,
    reference_batch_size=10,
    warmup_epochs=10,
    learning_rate=0.05,
)
VIEWS = Augmentation(operations=("identity", *GEOMETRIC))


def engine(federation, make_model, method=None, seed=0, **options):
    method = method or FedMT(QUICK, VIEWS, xi=0.6)
    return LocalEngine(federation, method, make_model(federation), seed, **options)


def rounds(engine: LocalEngine, count: int) -> tuple[State, list[dict]]:
    state, record = engine.start()
    records = [record]
    for _ in range(count):
        state, record = engine.round(state)
        records.append(record)
    return state, records


def same(a: State, b: State) -> bool:
    return a.weights.keys() == b.weights.keys() and all(
        torch.equal(a.weights[k], b.weights[k]) for k in a.weights
    )


def without_seconds(record: dict) -> dict:
    return {k: v for k, v in record.items() if k != "seconds"}


@pytest.mark.parametrize("correspondence", ["given", "estimated"])
def test_same_seed_same_bits(make_federation, make_model, correspondence):
    method = FedMT(QUICK, VIEWS, xi=0.6, correspondence=correspondence)
    one, records = rounds(engine(make_federation(), make_model, method), 2)
    two, again = rounds(engine(make_federation(), make_model, method), 2)
    assert same(one, two)
    assert list(map(without_seconds, records)) == list(map(without_seconds, again))
    other, _ = rounds(engine(make_federation(), make_model, method, seed=1), 2)
    assert not same(one, other)


def test_a_round_is_a_function_of_the_state(make_federation, make_model):
    """Resuming relies on this: another engine continues from a state to the same weights."""
    first = engine(make_federation(), make_model)
    state, _ = rounds(first, 1)
    expected, _ = first.round(state)
    fresh = engine(make_federation(), make_model)
    rounds(fresh, 2)  # its model now holds other weights, which must not matter
    found, _ = fresh.round(state)
    assert same(expected, found)


def test_neither_order_nor_absence_changes_what_a_center_computes(make_federation, make_model):
    whole = make_federation()
    reversed_ = replace(whole, centers=tuple(reversed(whole.centers)))
    one, _ = rounds(engine(whole, make_model), 1)
    two, _ = rounds(engine(reversed_, make_model), 1)
    assert same(one, two)
    alone = replace(whole, centers=whole.centers[1:2])
    # Pooled statistics depend on who is present. With only the reference center's, all else is equal.
    method = FedMT(replace(QUICK, batch_norm="static-reference"), VIEWS, xi=0.6)
    _, with_others = rounds(engine(whole, make_model, method), 1)
    _, without = rounds(engine(alone, make_model, method), 1)
    mine, same_one = (r[1]["centers"]["center-2"] for r in (without, with_others))
    assert 0 < same_one.pop("update_cosine") < mine.pop("update_cosine") == pytest.approx(1)  # of the round
    assert mine == same_one
    assert {"losses", "update_norm"} <= mine.keys()


def test_all_abstain_and_nothing_is_harmed(make_federation, make_model):
    method = FedMT(replace(QUICK, reference_epochs=0), VIEWS, xi=1 - 1e-12, soft=False)
    running = engine(make_federation(), make_model, method)
    before, _ = running.start()
    after, record = running.round(before)
    assert all("abstained" in c for c in record["centers"].values())
    assert same(before, after)
    # The reference center still trains if it has epochs.
    method = FedMT(QUICK, VIEWS, xi=1 - 1e-12, soft=False)
    running = engine(make_federation(), make_model, method)
    before, _ = running.start()
    after, record = running.round(before)
    assert not same(before, after)
    assert record["reference_loss"] > 0


def test_one_abstains_and_the_mean_is_over_the_others(make_federation, make_model):
    @dataclass(frozen=True)
    class OneAbstains(FedMT):
        def center_round(self, center, *arguments) -> CenterRound:
            if center.name == "center-1":
                return CenterRound(None, reason="away")
            return super().center_round(center, *arguments)

    whole = make_federation()
    training = replace(QUICK, batch_norm="static-reference")
    some, record = rounds(engine(whole, make_model, OneAbstains(training, VIEWS, xi=0.6)), 1)
    rest, _ = rounds(
        engine(replace(whole, centers=whole.centers[1:]), make_model, FedMT(training, VIEWS, xi=0.6)), 1
    )
    assert record[1]["centers"]["center-1"] == {"abstained": "away"}
    assert same(some, rest)


def test_a_center_that_diverges_is_left_out_and_named(make_federation, make_model):
    @dataclass(frozen=True)
    class OneDiverges(FedMT):
        def center_round(self, center, *arguments) -> CenterRound:
            plan = super().center_round(center, *arguments)
            if center.name == "center-2" and plan.work is not None:
                return replace(plan, work=replace(plan.work, learning_rate=1e38))
            return plan

    state, records = rounds(engine(make_federation(), make_model, OneDiverges(QUICK, VIEWS, xi=0.6)), 1)
    assert "diverged" in records[1]["centers"]["center-2"]["left_out"]
    assert all(bool(v.isfinite().all()) for v in state.weights.values())


def test_a_center_whose_update_is_left_out_goes_on_from_what_it_kept(make_federation, make_model):
    """A round that does not count leaves nothing behind: neither M-hat nor a control variate."""
    federation = make_federation(half=True)
    method = FedMT(QUICK, VIEWS, xi=0.6, correspondence="estimated")
    first = engine(federation, make_model, method, strategy=Scaffold())
    state, _ = rounds(first, 1)
    attack = Scale(("center-2",), factor=1e9)
    bad = engine(federation, make_model, method, strategy=Scaffold(), attack=attack)
    after, record = bad.round(state)
    assert "not plausible" in record["centers"]["center-2"]["left_out"]
    assert after.kept.keys() == state.kept.keys()
    for name, own in after.kept.items():
        was = state.kept[name]
        unchanged = own.keys() == was.keys() and all(torch.equal(own[k], was[k]) for k in own)
        assert unchanged == (name == "center-2"), name
    newcomer, _ = bad.round(replace(state, kept={}))
    assert "center-2" not in newcomer.kept and "center-1" in newcomer.kept


def test_centers_with_the_wanted_labels_and_with_none(make_federation, make_model):
    """SemiFL's case and the identity: both are valid centers, alongside one that labels differently."""
    whole = make_federation()
    first, second, third = whole.centers
    mixed = replace(
        whole,
        centers=(
            replace(first, space=None, labels=None, correspondence=None),
            replace(second, space=whole.wanted, labels=second.truth, correspondence=None),
            third,
        ),
    )
    assert mixed.centers[1].correspondence == Correspondence.identity(whole.wanted)
    method = FedMT(QUICK, VIEWS, xi=0.3, correspondence="estimated", projection="all")
    state, records = rounds(engine(mixed, make_model, method), 1)
    unlabeled, identity, other = records[1]["centers"].values()
    assert unlabeled["losses"]["projection"] == pytest.approx(0, abs=1e-6)
    assert identity["pseudo_label_accuracy"] == 1 and identity["confident_share"] == 1
    assert "correspondence_error" in other and "correspondence_error" not in identity
    assert set(state.kept["center-3"]) == {"correspondence", "estimates", "prior"}
    assert set(state.kept["center-2"]) == {"prior"}


def test_a_center_without_a_known_correspondence_estimates_it(make_federation, make_model):
    whole = make_federation()
    unknown = replace(
        whole, centers=tuple(replace(c, correspondence=None, truth=None) for c in whole.centers)
    )
    state, records = rounds(engine(unknown, make_model), 1)
    for name, kept in state.kept.items():
        assert kept["correspondence"].sum(0).allclose(torch.ones(10)), name
    assert "correspondence_error" not in records[1] and "pseudo_label_accuracy" not in records[1]
    assert "department" in records[1]["accuracy"]


def test_training_never_reads_the_truth(make_federation, make_model):
    """The hidden wanted labels only measure pseudo-labels, so scrambling them must not change a weight."""
    whole = make_federation()
    scrambled = replace(whole, centers=tuple(replace(c, truth=(c.truth + 1) % 10) for c in whole.centers))
    one, right = rounds(engine(whole, make_model), 1)
    two, wrong = rounds(engine(scrambled, make_model), 1)
    assert same(one, two)
    assert right[1]["pseudo_label_accuracy"] != wrong[1]["pseudo_label_accuracy"]


@pytest.mark.parametrize("batch_norm", ["static", "static-reference", "running"])
def test_batch_norm_modes(make_federation, make_model, batch_norm):
    training = replace(QUICK, batch_norm=batch_norm)
    state, _ = rounds(engine(make_federation(), make_model, FedMT(training, VIEWS, xi=0.6)), 2)
    variances = [v for k, v in state.weights.items() if k.endswith("running_var")]
    assert variances and all((v > 0).all() for v in variances)


def test_static_statistics_are_those_of_the_plain_images(make_federation, make_model):
    """The first layer's statistics must be the mean over the un-augmented images of all centers."""
    federation = make_federation()
    running = engine(federation, make_model)
    state, _ = running.start()
    images = torch.cat([c.images for c in (federation.reference, *federation.centers)]).float() / 255
    running.model.load_state_dict(state.weights)
    with torch.no_grad():
        model = running.model
        features = model.backbone.features[0][0]((images - model.mean) / model.std)
    expected = features.mean((0, 2, 3))
    torch.testing.assert_close(
        state.weights["backbone.features.0.1.running_mean"], expected, rtol=1e-4, atol=1e-5
    )


def test_statistics_of_many_images_are_of_some_that_are_spread_over_all(make_model):
    """2,500 images are sorted from dark to bright, so the first thousand alone would give another mean."""
    images = torch.arange(2500).mul(255).div(2499).to(torch.uint8)[:, None, None, None].expand(-1, 1, 28, 28)
    space = LabelSpace("f", ["a", "b"])
    reference = Center("r", images.clone(), space, torch.arange(2500) % 2)
    training = replace(QUICK, warmup_epochs=0)
    running = engine(Federation(space, reference, ()), make_model, Single(training, VIEWS))
    seen = []
    running.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].mean((1, 2, 3))))
    running.start()
    brightness = torch.cat(seen)
    assert 500 < len(brightness) <= 1000
    assert brightness.mean().item() == pytest.approx(0.5, abs=0.005)


def test_single_leaves_the_centers_alone(make_federation, make_model):
    whole = make_federation()
    other = replace(whole, centers=tuple(replace(c, values=255 - c.images) for c in whole.centers))
    one, records = rounds(engine(whole, make_model, Single(QUICK, VIEWS)), 2)
    two, _ = rounds(engine(other, make_model, Single(QUICK, VIEWS)), 2)
    assert same(one, two)
    assert records[-1]["centers"] == {}
    assert {"garment", "department", "layer"} <= set(records[-1]["accuracy"])


def test_weights_by_samples(make_federation, make_model):
    """With one big and one small center, the two weightings differ. With equal sizes, they do not."""
    whole = make_federation()
    by_samples = FedMT(replace(QUICK, weights="samples"), VIEWS, xi=0.6)
    equal, _ = rounds(engine(whole, make_model), 1)
    weighted, _ = rounds(engine(whole, make_model, by_samples), 1)
    for key in equal.weights:
        torch.testing.assert_close(equal.weights[key], weighted.weights[key], rtol=1e-4, atol=1e-5)
    sizes = (5, 20, 40)
    centers = tuple(
        replace(c, values=c.values[:n], labels=c.labels[:n], truth=c.truth[:n])
        for c, n in zip(whole.centers, sizes, strict=False)
    )
    training = replace(by_samples.training, reference_epochs=0)
    uneven = replace(whole, centers=centers)
    running = engine(uneven, make_model, FedMT(training, VIEWS, xi=0.6), strategy=FedAvg())
    state, _ = running.start()
    after, _ = running.round(state)
    sent = [running.site.center_round(c, state.weights, {}, {}, 1).update for c in centers]
    for key in running._parameters:
        mean = sum(n * update[key].double() for n, update in zip(sizes, sent, strict=True)) / sum(sizes)
        torch.testing.assert_close(
            after.weights[key].double(), state.weights[key] + mean, rtol=1e-4, atol=1e-6
        )


def test_records_hold_what_a_reader_needs(make_federation, make_model):
    method = FedMT(QUICK, VIEWS, xi=0.6, correspondence="estimated")
    _, records = rounds(engine(make_federation(), make_model, method), 1)
    record = records[1]
    assert record["round"] == 1
    assert {"garment", "department", "layer"} <= set(record["accuracy"])
    assert {"department", "layer"} <= set(record["mean_matrix"]["accuracy"])
    assert {"loss", "fix", "mix"} == set(record["losses"])
    assert {"reference", "statistics", "pseudo_labels", "train", "aggregate", "test"} <= set(
        record["seconds"]
    )
    assert {"confident_share", "pseudo_label_accuracy", "correspondence_error"} <= set(record)


def test_random_numbers_depend_on_seed_round_and_name_alone():
    def draw(*key):
        return random_numbers(*key).random(4).tolist()

    assert draw(1, 2, "a") == draw(1, 2, "a")
    assert len({tuple(draw(*key)) for key in ((1, 2, "a"), (2, 1, "a"), (1, 2, "b"), (12, 0, "a"))}) == 4


def test_accuracy_by_projection_is_counted_right(make_model):
    """Two wanted classes that differ in brightness belong to one class of the other space."""
    fine, coarse = LabelSpace("f", ["a", "b", "c"]), LabelSpace("c", ["ab", "c"])
    m = Correspondence([[1, 1, 0], [0, 0, 1]], fine, coarse)
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    reference = Center("r", images, fine, torch.tensor([0, 1, 2]))
    center = Center("x", images, coarse, torch.tensor([0, 0, 1]), m)
    tests = (
        Center("t", images, fine, torch.tensor([1, 1, 2])),
        Center("u", images, coarse, torch.tensor([0, 0, 1])),
    )

    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return (
                torch.tensor([[1.0, 0.9, 1.2], [0.0, 2.0, 1.0], [0.0, 0.0, 3.0]])[: len(x)] + 0 * self.weight
            )

    method = FedMT(replace(QUICK, warmup_epochs=0, batch_norm="running"), VIEWS)
    running = LocalEngine(Federation(fine, reference, (center,), tests), method, Fixed())
    _, record = running.start()
    # Sample 1: argmax is c (wrong), but a and b together outweigh it, so the coarse answer is right.
    assert record["accuracy"]["f"] == pytest.approx(2 / 3)
    assert record["accuracy"]["c"] == 1


def test_test_sets_of_one_space_count_as_one(make_federation, make_model):
    whole = make_federation()
    wanted = whole.tests[0]
    parts = tuple(
        replace(wanted, name=n, values=wanted.images[s], labels=wanted.labels[s])
        for n, s in (("a", slice(0, 30)), ("b", slice(30, None)))
    )
    _, one = engine(whole, make_model).start()
    _, two = engine(replace(whole, tests=parts), make_model).start()
    assert two["accuracy"]["garment"] == pytest.approx(one["accuracy"]["garment"])
    assert two["log_loss"]["garment"] == pytest.approx(one["log_loss"]["garment"])
    assert "tests" not in one and set(two["tests"]) == {"a", "b"}
    shares = [len(part.labels) / len(wanted.labels) for part in parts]
    each = [two["tests"][name]["accuracy"] for name in ("a", "b")]
    assert each[0] != each[1]
    assert sum(s * e for s, e in zip(shares, each, strict=True)) == pytest.approx(two["accuracy"]["garment"])


@pytest.mark.parametrize("samples", [1, 669])
def test_any_number_of_images_has_statistics(make_model, samples):
    """669 is one more than a batch for statistics on a CPU, and one is the fewest a center can have."""
    space = LabelSpace("f", ["a", "b"])
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 1, 28, 28), generator=generator, dtype=torch.uint8)
    reference = Center("r", images, space, torch.zeros(samples, dtype=torch.int64))
    federation = Federation(space, reference, ())
    running = engine(federation, make_model, Single(replace(QUICK, warmup_epochs=0), VIEWS))
    state, _ = running.start()
    assert all(bool(v.isfinite().all()) for v in state.weights.values())


def test_the_callers_random_numbers_are_left_alone(make_federation, make_model):
    running = engine(make_federation(), make_model)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    running.start()
    assert torch.equal(torch.rand(3), expected)


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(FedmtError, match="'nonsense'"):
        pick_device("nonsense")
    if not torch.cuda.is_available():
        with pytest.raises(FedmtError, match="no CUDA device"):
            pick_device("cuda")
        assert pick_device("auto") == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_makes_the_same_batches_and_close_weights(make_federation, make_model):
    """The same few steps on both devices in float32. More steps would drift apart by rounding alone."""
    federation = make_federation()
    training = replace(QUICK, warmup_epochs=1, reference_epochs=0, learning_rate=0.01)
    method = FedMT(training, VIEWS, xi=0.1)
    cpu, _ = rounds(engine(federation, make_model, method), 1)
    cuda = LocalEngine(federation, method, make_model(federation), 0, torch.device("cuda"), "float32")
    found, _ = rounds(cuda, 1)
    for key, value in cpu.weights.items():
        torch.testing.assert_close(found.weights[key].cpu(), value, rtol=1e-2, atol=5e-3)


def test_numbers_of_a_center_are_drawn_from_its_own_stream(make_federation, make_model):
    """The plan of a center is a function of its generator: the same stream gives the same batches."""
    federation = make_federation()
    predictions = torch.full((40, 10), 0.1)
    predictions[:, 0] = 0.99
    method = FedMT(QUICK, VIEWS, xi=0.5)
    plans = [
        method.center_round(federation.centers[0], predictions, {}, 1, np.random.default_rng(3))
        for _ in range(2)
    ]
    for key in plans[0].work.steps:
        assert torch.equal(plans[0].work.steps[key], plans[1].work.steps[key])
