"""DP-SGD: clipping and noise against float64, the influence of one record, and budgets over rounds."""

import copy
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("dp_accounting")

from fedmt import Center, FedmtError
from fedmt.aggregation import FedAvgM, Scaffold
from fedmt.data.member import with_identity
from fedmt.engines.budget import Budget, planned_noise
from fedmt.engines.eager import private
from fedmt.engines.eager.private import Noising, check_apart, clipped_sum, record_loss, scaled_sum
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Outcome
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import METHODS, FedMT, SemiFL, Training
from fedmt.methods.base import NotPrivate
from fedmt.methods.sampling import Sampling, poisson_stream
from fedmt.methods.work import LocalWork
from fedmt.privacy import Ledger, PrivacySpec

QUICK = Training(
    rounds=2,
    batch_size=10,
    reference_epochs=1,
    reference_batch_size=10,
    warmup_epochs=3,
    learning_rate=0.05,
    batch_norm="static-reference",
)
VIEWS = Augmentation(operations=("identity",))
SPEC = PrivacySpec(epsilon=4.0, delta=1e-3)
PRIVATE = FedMT(QUICK, VIEWS, xi=0.6, privacy=SPEC)


def no_noise(clip: float = 1.0, expected: float = 10.0) -> Noising:
    return Noising(clip, 0.0, expected, torch.zeros)


@pytest.fixture
def engine(make_federation, make_model):
    """The engine of a federation whose centers train privately."""

    def make(method=PRIVATE, seed=0, strategy=None, **options) -> LocalEngine:
        federation = options.pop("federation", None) or make_federation(half=True)
        model = make_model(federation)
        return LocalEngine(federation, method, model, seed, strategy=strategy or FedAvgM(), **options)

    return make


def job_of(running: LocalEngine):
    """The first center's work in round 1, and the model that it receives."""
    state, _ = running.start()
    center = running.federation.centers[0]
    job = running.site.plan(center, state.weights, {}, {}, 1)
    running.trainer.load(job.received)
    return center, job


def double_gradients(model: nn.Module, work: LocalWork, views: Tensor, steps: dict) -> list[Tensor]:
    """The gradient of each record as one vector, one record after another, in float64."""
    twin = copy.deepcopy(model).double().eval()
    tables = {k: v.double() if v.is_floating_point() else v for k, v in work.tables.items()}
    found = []
    for i in range(len(views)):
        step = {k: v[i].double() if v.is_floating_point() else v[i] for k, v in steps.items()}
        loss = work.loss(twin(views[i].double()), step, tables)["loss"]
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(twin.parameters()))]))
    return found


def flat(gradients: dict) -> Tensor:
    return torch.cat([g.flatten() for g in gradients.values()])


def test_the_clipped_sum_is_that_of_float64(engine, monkeypatch):
    running = engine()
    center, job = job_of(running)
    work, model = job.work, running.trainer.model.eval()
    steps = {k: v[:12] for k, v in work.steps.items()}
    views = work.views(center.values[steps["index"]], steps)
    assert views.shape[:2] == (12, 2)  # a strong and a mixed view, which are one contribution
    own = double_gradients(model, work, views, steps)
    lengths = torch.stack([g.norm() for g in own])
    clip = float(lengths.median())
    expected = sum(g * min(1.0, clip / (float(g.norm()) + 1e-6)) for g in own)
    monkeypatch.setattr(private, "AT_ONCE", 5 * len(expected))  # in parts of five records
    values = {k: p.detach() for k, p in model.named_parameters()}
    found = clipped_sum(record_loss(model, work, work.tables), values, views, steps, clip)
    torch.testing.assert_close(flat(found).double(), expected, rtol=1e-4, atol=1e-5)
    # Without clipping, the sum would be different.
    assert (flat(found).double() - sum(own)).norm() > 0.1 * sum(own).norm()


def test_a_step_adds_the_noise_and_divides_by_what_was_expected(engine):
    running = engine(
        replace(PRIVATE, training=replace(QUICK, momentum=0.0, weight_decay=0.0, nesterov=False))
    )
    center, job = job_of(running)
    work = replace(job.work, steps={k: v[:4] for k, v in job.work.steps.items()}, sizes=torch.tensor([4]))
    model = running.trainer.model
    before = flat(dict(model.named_parameters())).detach().double()
    views = work.views(center.values[work.steps["index"]], work.steps)
    own = double_gradients(model, work, views, work.steps)
    clip, sigma, expected = 0.5, 1.7, 9.0
    xi = torch.linspace(-2, 2, len(before))
    running.trainer.train_privately(center.values, work, Noising(clip, sigma, expected, lambda n: xi[:n]))
    # All weights are one vector, in the layout of the optimizer, and the noise has the same layout.
    optimizer = running.trainer._optimizer
    places = {k: v for k, v in optimizer._places.items()}
    noise = torch.cat([xi.as_strided(*places[k]).flatten() for k, _ in model.named_parameters()]).double()
    total = sum(g * min(1.0, clip / (float(g.norm()) + 1e-6)) for g in own) + sigma * clip * noise
    after = flat(dict(model.named_parameters())).detach().double()
    torch.testing.assert_close(after - before, -work.learning_rate * total / expected, rtol=1e-3, atol=1e-6)


def test_a_step_without_a_record_still_takes_its_noise(engine):
    running = engine(
        replace(PRIVATE, training=replace(QUICK, momentum=0.0, weight_decay=0.0, nesterov=False))
    )
    center, job = job_of(running)
    none = {k: v[:0] for k, v in job.work.steps.items()}
    work = replace(job.work, steps=none, sizes=torch.tensor([0, 0]))
    rng = torch.Generator().manual_seed(0)
    before = flat(dict(running.trainer.model.named_parameters())).detach()
    noising = Noising(0.5, 3.0, 10.0, lambda n: torch.randn(n, generator=rng))
    running.trainer.train_privately(center.values, work, noising)
    step = (flat(dict(running.trainer.model.named_parameters())).detach() - before) / work.learning_rate
    assert float(step.std()) == pytest.approx(2**0.5 * 3.0 * 0.5 / 10, rel=0.02)


def test_opacus_agrees(engine):
    """Compares with the reference implementation, whose optimizer clips and sums per-record gradients."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("opacus")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        class Small(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm = nn.Conv2d(1, 8, 3, 2), nn.GroupNorm(2, 8)
                self.fc = nn.Linear(8, 10)

            def forward(self, images: Tensor) -> Tensor:
                return self.fc(self.norm(self.conv(images)).relu().mean((2, 3)))

        torch.manual_seed(0)
        ours = Small()
        theirs = GradSampleModule(copy.deepcopy(ours), loss_reduction="mean")
        images, labels = torch.randn(16, 1, 14, 14), torch.arange(16) % 10
        optimizer = DPOptimizer(
            torch.optim.SGD(theirs.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=0.7,
            expected_batch_size=16,
        )
        nn.functional.cross_entropy(theirs(images), labels).backward()
        optimizer.pre_step()
    work = LocalWork(
        lambda samples, steps: samples,
        lambda logits, step, tables: {"loss": nn.functional.cross_entropy(logits, step["label"])},
        {"index": torch.arange(16)[:, None], "label": labels[:, None]},
        {},
        1.0,
    )
    values = {k: p.detach() for k, p in ours.named_parameters()}
    found = clipped_sum(record_loss(ours, work, {}), values, images[:, None], work.steps, 0.7)
    for name, parameter in theirs._module.named_parameters():
        torch.testing.assert_close(found[name] / 16, parameter.grad, rtol=1e-4, atol=1e-6)


def test_one_record_more_or_less_changes_a_sum_by_at_most_the_clip(engine):
    running = engine()
    center, job = job_of(running)
    work, model, clip = job.work, running.trainer.model.eval(), 0.3
    steps = {k: v[:8] for k, v in work.steps.items()}
    views = work.views(center.values[steps["index"]], steps)
    views[3] *= 1e4  # a record that would pull the model away
    values = {k: p.detach() for k, p in model.named_parameters()}
    loss = record_loss(model, work, work.tables)
    whole = flat(clipped_sum(loss, values, views, steps, clip))
    changes = []
    for i in range(8):
        rest = [j for j in range(8) if j != i]
        without = clipped_sum(loss, values, views[rest], {k: v[rest] for k, v in steps.items()}, clip)
        changes.append(float((whole - flat(without)).norm()))
    assert max(changes) <= clip * (1 + 1e-4)
    assert changes[3] == pytest.approx(clip, rel=1e-3)
    # Each record passes through batch norm alone, so the sum over all records is the sum of the partial sums.
    parts = [clipped_sum(loss, values, views[p], {k: v[p] for k, v in steps.items()}, clip) for p in
             (slice(0, 5), slice(5, 8))]  # fmt: skip
    torch.testing.assert_close(flat(parts[0]) + flat(parts[1]), whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_record_that_overflows_adds_nothing(bad):
    """A coordinator can build a model for which a certain record overflows. This must not reveal it."""
    gradients = {"a": torch.ones(3, 4), "b": torch.ones(3, 2)}
    gradients["a"][1] = bad
    lengths = (gradients["a"].square().sum(1) + gradients["b"].square().sum(1)).sqrt()
    told = ((1 / lengths).clamp_max(1.0) @ gradients["a"]).isnan().any()
    assert told or bad == 3e38  # NaN without the defense; the last value's length overflows
    found = scaled_sum(gradients, 1.0)
    rest = scaled_sum({k: g[[0, 2]] for k, g in gradients.items()}, 1.0)
    assert all(torch.equal(found[k], rest[k]) for k in found)


def test_a_network_that_looks_at_its_values_is_refused():
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if x.sum() > 0 else self.fc(-x)

    work = LocalWork(lambda x, _: x, lambda z, s, t: {"loss": z.sum()}, {"index": torch.zeros(2, 1)}, {}, 1.0)
    model = Looking()
    values = {k: p.detach() for k, p in model.named_parameters()}
    with pytest.raises(FedmtError, match="does not support gradients of single records"):
        clipped_sum(record_loss(model, work, {}), values, torch.ones(2, 1, 3), work.steps, 1.0)


# -- batches ---------------------------------------------------------------------------------------


def test_batches_are_drawn_record_by_record_and_their_number_is_public():
    sampling = Sampling.of(PrivacySpec(epsilon=1, delta=1e-5, size=1000), QUICK, records=987)
    assert sampling == (0.01, 100, 10.0)  # it depends on the declared size, not on the true one
    index, sizes = poisson_stream(np.arange(987), replace_steps(sampling, 2000), np.random.default_rng(0))
    assert sizes.shape == (2000,) and int(sizes.sum()) == len(index)
    counts = np.bincount(index[:, 0], minlength=987)
    # Counts are Binomial(2000, 0.01) for each record, and sizes Binomial(987, 0.01): mean and variance.
    assert counts.mean() == pytest.approx(20, abs=0.5) and counts.var() == pytest.approx(19.8, rel=0.2)
    assert float(sizes.double().var()) == pytest.approx(9.77, rel=0.2)
    assert Sampling.of(SPEC, QUICK, records=7) == (1.0, 1, 7.0)
    assert Sampling.of(SPEC, replace(QUICK, local_epochs=3), records=987).steps == 297  # 3 x 98.7


def replace_steps(sampling: Sampling, steps: int) -> Sampling:
    return Sampling(sampling.rate, steps, sampling.expected)


WAYS = {
    "fedmt": PRIVATE,
    "fedmt, the paper's": FedMT(QUICK, VIEWS, xi=0.3, soft=False, projection="confident", privacy=SPEC),
    "fedmt, with R^p": FedMT(QUICK, VIEWS, xi=0.3, projection="all", privacy=SPEC),
    "fedmt, uniform": FedMT(QUICK, VIEWS, prior="uniform", privacy=SPEC),
    "semifl": SemiFL(QUICK, VIEWS, xi=0.3, privacy=SPEC),
    "fedtrans": METHODS["fedtrans"](QUICK, VIEWS, privacy=SPEC),
    "fedrep, weak": METHODS["fedrep"](replace(QUICK, supervised_views="weak+strong"), VIEWS, privacy=SPEC),
}
LEAKS = ("fedmt", "fedmt, uniform", "semifl")
"""Methods whose tables depend on all records unless they are private."""


def tables_with(method, center, changed: bool):
    """What a center trains with in a round. The last record is a different one if `changed`."""
    generator = torch.Generator().manual_seed(0)
    predictions = torch.rand(len(center), 10, generator=generator).mul(4).softmax(1)
    if changed:
        labels = center.labels.clone()
        labels[-1] = (labels[-1] + 1) % len(center.space)
        center = replace(center, labels=labels)
        predictions[-1] = predictions[-1].flip(0)
    return method.center_round(center, predictions, {}, 1, np.random.default_rng(0)).work


@pytest.mark.parametrize("name", ["fedtrans", "fedrep"])
def test_the_frequencies_of_a_private_center_s_own_labels_are_not_used(make_federation, name):
    """They would adjust the loss of every record by a count over all of them."""
    federation = make_federation(samples=40, half=True)
    truth = torch.where(torch.arange(40) % 2 == 0, 0, federation.centers[0].truth)
    center = with_identity(
        Center("Berlin", federation.centers[0].values, federation.wanted, truth), federation.wanted
    )
    method = METHODS[name](QUICK, VIEWS, privacy=SPEC)
    assert "log_prior" not in tables_with(method, center, False).tables
    assert "log_prior" in tables_with(replace(method, privacy=None), center, False).tables


@pytest.mark.parametrize("way", WAYS)
def test_what_a_record_is_trained_with_does_not_depend_on_another(make_federation, way):
    """Priors, shares, M-hat and partners would depend on it, so with [privacy] none of them exists."""
    method, center = WAYS[way], make_federation(half=True).centers[0]

    def differences(method):
        one, two = (tables_with(method, center, changed) for changed in (False, True))
        assert one.tables.keys() == two.tables.keys()
        rows = [k for k in one.tables if len(one.tables[k]) == len(center)]
        return [
            k
            for k in one.tables
            if not torch.equal(one.tables[k][:-1], two.tables[k][:-1])
            or (k not in rows and not torch.equal(one.tables[k], two.tables[k]))
        ]

    assert differences(method) == []
    work = tables_with(method, center, False)
    check_apart(work)
    assert len(work.sizes) == 4
    if way in LEAKS:
        assert differences(replace(method, privacy=None)) != []
    with pytest.raises(FedmtError, match="mix records"):
        check_apart(tables_with(replace(method, privacy=None), center, False))


def test_no_confident_record_is_no_reason_to_abstain(make_federation):
    """Abstaining would reveal something about all records."""
    center = make_federation(half=True).centers[0]
    paper = replace(WAYS["fedmt, the paper's"], pseudo_labels="plain", xi=0.9999)
    for method in (paper, replace(WAYS["semifl"], xi=0.9999)):
        work = tables_with(method, center, False)
        assert work.sizes.tolist() == [0, 0, 0, 0]
        assert tables_with(replace(method, privacy=None), center, False) is None


def test_settings_that_would_break_it_are_all_named():
    @dataclass(frozen=True)
    class Own(FedMT):
        pass

    assert Own.private  # inherited, so it does not count
    training = replace(QUICK, batch_norm="static")
    method = Own(training, VIEWS, correspondence="estimated", average=True, privacy=SPEC)
    with pytest.raises(NotPrivate) as caught:
        method.check_privacy(FedAvgM())
    for key in ("method.name", "training.batch_norm", "method.correspondence", "method.average"):
        assert key in str(caught.value)

    @dataclass(frozen=True)
    class Careful(FedMT):
        private: ClassVar[bool] = True

    Careful(QUICK, VIEWS, privacy=SPEC).check_privacy(FedAvgM())
    replace(method, privacy=None).check_privacy(FedAvgM())


def test_a_center_that_cannot_be_private_is_named(engine, make_federation):
    whole = make_federation(half=True)
    unknown = replace(whole, centers=(replace(whole.centers[0], correspondence=None), *whole.centers[1:]))
    with pytest.raises(NotPrivate, match=r"Center 'center-1': .* needs its correspondence"):
        engine(federation=unknown)
    # A round that is requested without an earlier check is refused too, before anything is charged.
    running = engine()
    state, _ = running.start()
    with pytest.raises(NotPrivate, match="needs its correspondence"):
        running.site.plan(unknown.centers[0], state.weights, {}, {}, 1)
    with pytest.raises(NotPrivate, match=r"Center 'center-1': privacy.delta = 0.1 at 40 records"):
        engine(replace(PRIVATE, privacy=PrivacySpec(epsilon=1, delta=0.1)))


# -- rounds ----------------------------------------------------------------------------------------


def test_rounds_are_repeatable_and_record_what_was_spent(engine):
    running = engine()
    state, _ = running.start()
    states, spent = [state], []
    for _ in range(2):
        state, record = running.round(state)
        states.append(state)
        for told in record["centers"].values():
            # Anything else would depend on all records. The update itself is already private.
            assert told.keys() == {"privacy_spent", "update_norm", "update_cosine"}
        assert "losses" not in record and "confident_share" not in record
        spent.append(record["centers"]["center-1"]["privacy_spent"])
    assert 0 < spent[0] < spent[1] <= SPEC.epsilon < 1.1 * spent[1]
    other = engine()
    again, record = other.round(states[1])  # as a resumed run does
    assert all(torch.equal(again.weights[k], states[2].weights[k]) for k in again.weights)
    assert record["centers"]["center-1"]["privacy_spent"] == spent[1]
    # The network's statistics are the reference center's, and different noise gives different weights.
    different, _ = engine(seed=1).round(states[1])
    assert not torch.equal(different.weights["backbone.fc.bias"], again.weights["backbone.fc.bias"])


def test_training_stops_before_the_budget_is_passed(engine):
    """The noise is calibrated for two rounds. After them, a center abstains and says why."""
    running = engine()
    state, _ = running.start()
    for number in range(1, 5):
        state, record = running.round(state)
        for told in record["centers"].values():
            assert ("abstained" in told) == (number > 2)
    assert "its privacy budget is spent: epsilon 4.00 of 4 at delta 0.001" in told["abstained"]
    for kept in state.kept.values():
        assert Ledger.of(kept).epsilon(SPEC.delta) <= SPEC.epsilon
        assert Ledger.of(kept).costs[0].steps == 2 * 4


@pytest.mark.parametrize("strategy", [None, Scaffold()], ids=["fedavgm", "scaffold"])
def test_the_fast_engine_trains_private_centers_step_by_step(engine, strategy):
    results = []
    for graphs in (False, True):
        running = engine(graphs=graphs, strategy=strategy)
        state, _ = running.start()
        first = replace(state, weights=results[0][0].weights) if results else state
        results.append((first, running.round(first)[0].kept))
    assert running._fleet is not None and not running._fleet.eager
    for name, kept in results[0][1].items():
        assert all(torch.equal(kept[k], results[1][1][name][k]) for k in kept)


def test_between_machines_nobody_can_repeat_the_numbers(engine):
    running = engine()
    center = running.federation.centers[0]
    simulated = [Budget(0).allow(PRIVATE, center, {}, 1) for _ in range(2)]
    assert torch.equal(*(a.noising.normal(5) for a in simulated))
    assert simulated[0].rng.random() == simulated[1].rng.random()
    secret = [Budget(None).allow(PRIVATE, center, {}, 1) for _ in range(2)]
    assert not torch.equal(*(a.noising.normal(5) for a in secret))
    assert secret[0].rng.random() != secret[1].rng.random()
    assert simulated[0].noising.noise == secret[0].noising.noise == planned_noise(PRIVATE, len(center))


def test_a_private_center_counts_by_the_number_that_may_be_known(engine):
    spec = PrivacySpec(epsilon=4.0, delta=1e-3, size=50)
    running = engine(replace(PRIVATE, privacy=spec, training=replace(QUICK, weights="samples")))
    center, reference = running.federation.centers[0], running.federation.reference
    counted = {}

    def add(name, update, weight, updates, number):
        counted[name] = weight
        return True

    running._add = add
    for member in (center, reference):
        running._average(member, Outcome({}, {}, {"a": torch.zeros(1)}), None, 1)
    assert len(center) == 40 and counted == {center.name: 50, reference.name: len(reference)}
    assert Budget(0).allow(running.method, center, {}, 1).noising.expected == 10.0
