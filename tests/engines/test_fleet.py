"""The fast path against the reference, `Trainer.train`: both take the same steps.

On a CPU, the workers' steps are called. On CUDA, they are captured and replayed. Slots, chunks, the order of
results and the strategies' terms are the same code. Tolerances: the loss of each of the first steps agrees to
a relative 1e-5 (CPU) or 2e-3 (CUDA, float32). Later steps drift apart only by rounding.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmt.aggregation import FedAvg, FedAvgM, FedBN, FedProx, Scaffold, all_finite, packed
from fedmt.backbones import Classifier
from fedmt.backbones.heads import add_heads
from fedmt.backbones.mobilenet import mobilenet_v2
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.core.kernels import usable
from fedmt.engines.eager.sgd import FlatSGD
from fedmt.engines.graphs import fleet as fleet_module
from fedmt.engines.graphs import program as program_module
from fedmt.engines.graphs import triton_sgd
from fedmt.engines.graphs import worker as worker_module
from fedmt.engines.graphs.flat import FlatModel, update
from fedmt.engines.graphs.program import Program, Uncapturable
from fedmt.engines.graphs.worker import Check, Worker, first_steps
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Outcome
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import METHODS, FedMT, Training

HERE = torch.device("cpu")
GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_both = pytest.mark.parametrize("device", [HERE, pytest.param(GPU, marks=needs_gpu)], ids=str)

QUICK = Training(
    rounds=3,
    local_epochs=1,
    batch_size=10,
    reference_epochs=1,
    reference_batch_size=10,
    warmup_epochs=1,
    learning_rate=0.01,
)
ALL_VIEWS = Augmentation()

WAYS = {
    "T": (FedMT(QUICK, ALL_VIEWS, xi=0.1), FedAvgM()),
    "E": (FedMT(QUICK, ALL_VIEWS, xi=0.1, correspondence="estimated"), FedAvgM()),
    "learnable": (
        FedMT(QUICK, ALL_VIEWS, xi=0.1, correspondence="estimated", estimator="learnable", projection="all"),
        FedAvgM(),
    ),
    "confident": (FedMT(QUICK, ALL_VIEWS, xi=0.13, soft=False, projection="confident"), FedAvgM()),
    "double": (FedMT(QUICK, ALL_VIEWS, xi=0.1, projection_loss="double-softmax"), FedAvg()),
    "semifl": (METHODS["semifl"](QUICK, ALL_VIEWS, xi=0.1), FedAvgM()),
    "fedtrans": (METHODS["fedtrans"](replace(QUICK, rounds=1), ALL_VIEWS, fine_tune_epochs=1), FedAvgM()),
    "fedrep": (METHODS["fedrep"](QUICK, ALL_VIEWS), FedAvgM()),
    "single": (METHODS["single"](QUICK, ALL_VIEWS), FedAvgM()),
    "fedprox": (FedMT(QUICK, ALL_VIEWS, xi=0.1), FedProx(mu=0.5)),
    "scaffold": (FedMT(QUICK, ALL_VIEWS, xi=0.1), Scaffold()),
    "fedbn": (FedMT(replace(QUICK, batch_norm="running"), ALL_VIEWS, xi=0.1), FedBN()),
    "plain sgd": (
        FedMT(replace(QUICK, nesterov=False, clip=0.0, momentum=0.5), ALL_VIEWS, xi=0.1),
        FedAvgM(),
    ),
}


def make_engine(federation, make_model, way, device=HERE, graphs=True, model=None, precision="float32"):
    method, strategy = WAYS[way] if isinstance(way, str) else way
    model = model or make_model(federation)
    if method.heads:
        torch.manual_seed(1)
        add_heads(model, len(federation.wanted), [len(s) for s in federation.spaces[1:]])
    return LocalEngine(federation, method, model, 0, device, precision, strategy, graphs)


def rounds(engine, count=2):
    state, record = engine.start()
    records = [record]
    for _ in range(count):
        state, record = engine.round(state)
        records.append(record)
    return state, records


def close(one, two, device, factor=1.0):
    """Asserts that two states are close after a few steps."""
    assert list(one.weights) == list(two.weights)
    for key, value in one.weights.items():
        torch.testing.assert_close(
            two.weights[key], value, rtol=1e-2, atol=factor * (1e-3 if device == HERE else 5e-3), msg=key
        )


# -- steps ------------------------------------------------------------------------------------------------


def jobs_of(engine, state):
    """A job for every center, and one for the reference center if it trains."""
    for center in engine.federation.centers:
        planned = engine.site.plan(center, state.weights, state.server, {}, 1)
        if not isinstance(planned, Outcome):
            yield planned
    own = engine.site.plan_reference(engine.federation.reference, state.weights, state.server, {}, 1)
    if own is not None:
        yield own


def smooth(model):
    """The same network without kinks, so that a different last bit cannot switch a ReLU or move a maximum."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())
            elif isinstance(child, nn.MaxPool2d):
                setattr(module, name, nn.AvgPool2d(child.kernel_size))
    return model


@on_both
@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_the_references(make_federation, make_model, way, device):
    federation = make_federation()
    engine = make_engine(federation, make_model, way, device, model=smooth(make_model(federation)))
    state, _ = engine.start()
    if way == "scaffold":
        generator = torch.Generator().manual_seed(0)
        # Far above the tolerance, but small enough that rounding errors do not grow from step to step.
        control = {
            k: 0.001 * torch.randn(v.shape, generator=generator).to(device)
            for k, v in state.weights.items()
            if k in engine._parameters
        }
        state = replace(state, server=packed("control", control))
    tolerance = 1e-5 if device == HERE else 2e-3
    jobs = list(jobs_of(engine, state))
    assert jobs
    for count in (1, 2, 3, 4):  # if the means over the first 1, 2, 3, 4 steps agree, so does every step
        short = [first_steps(job, count) for job in jobs]
        expected = []
        for job in short:
            done = engine.site.run(job)
            expected.append(replace(done, weights={k: v.clone() for k, v in done.weights.items()}))
        found = list(engine._fleet.train(short))
        assert not engine._fleet.eager
        for job, one, (same, two) in zip(short, expected, found, strict=True):
            assert same is job and one.losses.keys() == two.losses.keys()
            for key, value in one.losses.items():
                assert two.losses[key] == pytest.approx(value, rel=tolerance, abs=tolerance), (way, count)
            limit = (1e-5 if device == HERE else 1e-3) * count
            for key, value in one.weights.items():
                torch.testing.assert_close(two.weights[key], value, rtol=limit, atol=limit, msg=key)
            for mine, other in ((two.trainable, one.trainable), (two.mean_gradient, one.mean_gradient)):
                assert mine.keys() == other.keys()
                for key, value in other.items():
                    torch.testing.assert_close(mine[key], value, rtol=10 * limit, atol=10 * limit)


@on_both
@pytest.mark.parametrize("way", ["T", "E", "learnable", "fedrep", "scaffold", "fedbn", "semifl"])
def test_whole_rounds_are_the_references(make_federation, make_model, way, device):
    slow = make_engine(make_federation(), make_model, way, device, graphs=False)
    fast = make_engine(make_federation(), make_model, way, device)
    one, expected = rounds(slow)
    two, found = rounds(fast)
    assert not fast._fleet.eager
    close(one, two, device, factor=5)
    assert list(one.kept) == list(two.kept)
    for name, kept in one.kept.items():
        assert list(kept) == list(two.kept[name])
    for before, after in zip(expected, found, strict=True):
        assert list(before) == list(after) and list(before["centers"]) == list(after["centers"])
        for name, record in before["centers"].items():
            assert record.keys() == after["centers"][name].keys()


@on_both
def test_bfloat16_has_twins_and_the_same_losses(make_federation, make_model, device):
    engine = make_engine(make_federation(), make_model, "T", device, precision="bfloat16")
    state, _ = engine.start()
    job = next(jobs_of(engine, state))
    expected = engine.site.run(job).losses
    ((_, found),) = engine._fleet.train([job])
    assert len(engine._fleet._workers[0].flat.twins) > 10_000
    for key, value in expected.items():
        assert found.losses[key] == pytest.approx(value, rel=2e-2, abs=2e-2)


# -- scheduling -------------------------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_more_centers_than_workers(make_federation, make_model, monkeypatch, workers, device):
    """Sizes, lengths and numbers of classes differ: 7 centers run on a few workers, in order."""
    monkeypatch.setattr(fleet_module, "WORKERS", workers)
    whole = make_federation(departments=4, layers=3)
    centers = tuple(
        replace(c, values=c.images[:n], labels=c.labels[:n], truth=c.truth[:n])
        for c, n in zip(whole.centers, (40, 13, 27, 40, 5, 31, 40), strict=True)
    )
    whole = replace(whole, centers=centers)
    slow = make_engine(whole, make_model, "T", device, graphs=False)
    fast = make_engine(whole, make_model, "T", device)
    one, expected = rounds(slow, 1)
    two, found = rounds(fast, 1)
    assert 0 < len(fast._fleet._workers) <= workers and not fast._fleet.eager
    close(one, two, device)
    for name, record in expected[1]["centers"].items():
        for key, value in record["losses"].items():
            assert found[1]["centers"][name]["losses"][key] == pytest.approx(value, rel=2e-2, abs=2e-2)


@on_both
@pytest.mark.parametrize(("way", "workers"), [("single", 1), ("T", 3)])
def test_no_more_models_than_jobs(make_federation, make_model, way, workers, device):
    """With Single, only the reference center trains, however many centers there are."""
    engine = make_engine(make_federation(departments=2, layers=1), make_model, way, device)
    rounds(engine, 1)
    assert len(engine._fleet._workers) == workers and not engine._fleet.eager


@on_both
def test_workers_without_memory_leave_their_work_to_others(make_federation, make_model, monkeypatch, device):
    """The third worker's capture runs out of memory. Two train all centers, none of them step by step."""
    begin, refused = Worker.begin, []

    def short(self, *arguments):
        if self in refused or (len(fast._fleet._workers) > 2 and self is fast._fleet._workers[2]):
            refused.append(self)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return begin(self, *arguments)

    whole = make_federation(departments=3, layers=2, half=True)
    slow = make_engine(whole, make_model, "T", device, graphs=False)
    fast = make_engine(whole, make_model, "T", device)
    monkeypatch.setattr(Worker, "begin", short)
    one, _ = rounds(slow, 1)
    two, records = rounds(fast, 1)
    assert len(refused) == 3 and len(fast._fleet._workers) == 2 and not fast._fleet.eager
    assert all("losses" in r for r in records[1]["centers"].values())
    close(one, two, device)


@on_both
def test_workers_take_turns(make_federation, make_model, monkeypatch, device):
    """With chunks of 3 steps and 2 launched at a time, 4 steps are split into two, one and one."""
    monkeypatch.setattr(program_module, "CHUNK_STEPS", 3)
    monkeypatch.setattr(worker_module, "AT_A_TIME", 2)
    order = []
    step = Program.run_step
    monkeypatch.setattr(
        Program, "run_step", lambda self: order.append(fast._fleet._workers.index(self.worker)) or step(self)
    )
    whole = make_federation(half=True)
    slow = make_engine(whole, make_model, "T", device, graphs=False)
    fast = make_engine(whole, make_model, "T", device)
    one, _ = rounds(slow, 1)
    state, _ = fast.start()
    order.clear()
    two, _ = fast.round(state)
    if device == HERE:  # the first of each is a trial step
        assert order[:24] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2, 0, 1, 2, 0, 0]
    close(one, two, device)


def test_large_steps_take_fewer_workers(make_federation, make_model, monkeypatch):
    for filled, workers in ((1 << 30, 3), (3 * 2 * 10 * 14 * 14, 3), (2 * 10 * 14 * 14, 2), (1, 2)):
        monkeypatch.setattr(fleet_module, "FILLED", filled)
        assert make_engine(make_federation(), make_model, "T")._fleet._size == workers


@on_both
def test_a_small_center_after_a_large_one(make_federation, make_model, monkeypatch, device):
    """What the large center's steps left in the slots must not follow the small center's images."""
    monkeypatch.setattr(fleet_module, "WORKERS", 1)
    whole = make_federation(departments=2, layers=0, samples=200)
    large, last = whole.centers
    small = replace(last, values=last.images[:20], labels=last.labels[:20], truth=last.truth[:20])
    tests = tuple(replace(t, values=t.images[:5], labels=t.labels[:5]) for t in whole.tests)
    federation = replace(whole, centers=(large, small), tests=tests)
    _, expected = rounds(make_engine(federation, make_model, "T", device, graphs=False), 1)
    _, found = rounds(make_engine(federation, make_model, "T", device), 1)
    for one, two in zip(expected[1]["centers"].values(), found[1]["centers"].values(), strict=True):
        assert two["losses"]["loss"] == pytest.approx(one["losses"]["loss"], rel=2e-2)


@on_both
def test_two_runs_see_the_same_views(make_federation, make_model, monkeypatch, device):
    seen: list[list[Tensor]] = [[], []]
    launch = Worker._chunk
    for run in (0, 1):

        def chunk(self, now, into=seen[run]):
            launch(self, now)
            into.append(now.program.batch.double().sum())

        monkeypatch.setattr(Worker, "_chunk", chunk)
        rounds(make_engine(make_federation(), make_model, "T", device), 1)
    assert len(seen[0]) > 4
    assert torch.equal(torch.stack(seen[0]).cpu(), torch.stack(seen[1]).cpu())


@on_both
def test_a_round_is_a_function_of_the_state(make_federation, make_model, device):
    """For resuming, an engine whose slots held other data continues from a state as the first one did."""
    first = make_engine(make_federation(), make_model, "E", device)
    state, _ = rounds(first, 1)
    expected, _ = first.round(state)
    fresh = make_engine(make_federation(), make_model, "E", device)
    rounds(fresh, 2)
    found, _ = fresh.round(state)
    close(expected, found, device)
    if device == HERE:
        assert all(torch.equal(v, found.weights[k]) for k, v in expected.weights.items())


@on_both
def test_stopping_in_the_middle_leaves_a_working_engine(make_federation, make_model, device):
    engine = make_engine(make_federation(), make_model, "T", device)
    state, _ = engine.start()
    expected, _ = engine.round(state)

    def stop(number, name):
        if name == "center-3":
            raise KeyboardInterrupt

    engine.on_center = stop
    with pytest.raises(KeyboardInterrupt):
        engine.round(state)
    engine.on_center = lambda number, name: None
    found, _ = engine.round(state)
    close(expected, found, device)


@on_both
def test_a_center_that_diverges_is_left_out(make_federation, make_model, device):
    class OneDiverges(FedMT):
        def center_round(self, center, *arguments):
            plan = super().center_round(center, *arguments)
            if center.name == "center-2":
                return replace(plan, work=replace(plan.work, learning_rate=1e38))
            return plan

    method = OneDiverges(QUICK, ALL_VIEWS, xi=0.1)
    engine = make_engine(make_federation(), make_model, (method, FedAvgM()), device)
    state, records = rounds(engine, 1)
    assert "diverged" in records[1]["centers"]["center-2"]["left_out"]
    assert all(bool(v.isfinite().all()) for v in state.weights.values())


@on_both
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_all_finite(device, bad):
    good = [torch.randn(1000, device=device), torch.zeros((), device=device), torch.arange(3, device=device)]
    assert all_finite(good) and all_finite([]) and all_finite([torch.empty(0, device=device)])
    good[0][777] = bad
    assert not all_finite(good)


# -- falling back -----------------------------------------------------------------------------------------


class Waits(SmallCNN):
    """Reads a value on the host in every forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (1.0 if images.sum().item() > -1e9 else 2.0)


class FromTheHost(SmallCNN):
    """Creates a tensor on the host in every forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + torch.tensor([0.0] * 10).to(images.device)


class Drops(SmallCNN):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(images, 0.1, self.training))


class NotCopied(SmallCNN):
    def __deepcopy__(self, memo: object) -> NotCopied:
        raise TypeError("not to be copied")


@pytest.mark.parametrize(
    ("network", "device"),
    [
        (NotCopied, HERE),
        (Drops, HERE),
        *(pytest.param(n, GPU, marks=needs_gpu) for n in (Waits, FromTheHost, Drops)),
    ],
)
def test_what_cannot_be_captured_is_trained_step_by_step(make_federation, make_model, network, device):
    """There is a one-line warning, and the weights are the same as without the fast path."""
    federation = make_federation()

    def model():
        found = make_model(federation)
        found.backbone = network(10)
        torch.manual_seed(3)
        for p in found.parameters():
            nn.init.normal_(p, std=0.1)
        return found

    slow = make_engine(federation, make_model, "T", device, graphs=False, model=model())
    fast = make_engine(federation, make_model, "T", device, model=model())
    one, _ = rounds(slow)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        two, records = rounds(fast)
    lines = [str(w.message) for w in caught if "fast engine" in str(w.message)]
    assert len(lines) == 1 and "step by step" in lines[0], lines
    assert "losses" in records[-1]
    close(one, two, device, factor=5)
    if device == HERE:
        assert all(torch.equal(v, two.weights[k]) for k, v in one.weights.items())
    else:
        torch.cuda.empty_cache()


@needs_gpu
def test_a_wrong_replay_is_noticed(make_federation, make_model, monkeypatch):
    """The check against the reference catches a step that depends on something only the host knows."""

    class Counts(SmallCNN):
        calls = 0

        def forward(self, images: Tensor) -> Tensor:
            Counts.calls += 1
            return super().forward(images) * (100.0 if torch.cuda.is_current_stream_capturing() else 1.0)

    federation = make_federation()
    model = make_model(federation)
    model.backbone = Counts(10)
    engine = make_engine(federation, make_model, "T", GPU, model=model)
    with pytest.warns(UserWarning, match="replayed steps"):
        rounds(engine, 1)


class Trembles(SmallCNN):
    """Its logits are exact, but its gradients always differ, as MobileNetV2's do in bfloat16."""

    calls = 0

    def forward(self, images: Tensor) -> Tensor:
        Trembles.calls += 1
        logits = super().forward(images)
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(Trembles.calls))
        return logits + 0.7 * noise.to(logits) * (logits - logits.detach())


def capture_here(engine, job, monkeypatch):
    """Does what a worker does with a new shape of work on CUDA, with a capture that replays exactly."""
    monkeypatch.setattr(Program, "capture", lambda program, like=None: None)
    fleet = engine._fleet
    worker = fleet._available()[0]
    worker._capture(Program(worker, job), job, fleet._base_of(worker, job), fleet._check(job))


def test_a_replay_that_rounds_otherwise_is_right(make_federation, make_model, monkeypatch):
    """Even if errors grow from step to step, each step from equal weights matches the plain one."""
    federation = make_federation()
    model = make_model(federation)
    model.backbone = Trembles(10)
    engine = make_engine(federation, make_model, "T", model=model)
    state, _ = engine.start()
    (job, *_) = jobs_of(engine, state)
    job = replace(job, work=replace(job.work, learning_rate=3.0))
    two = [engine.site.run(first_steps(job, 2)).losses["loss"] for _ in range(4)]
    assert max(two) > 1.2 * min(two)  # so a mean over two steps says nothing
    capture_here(engine, job, monkeypatch)


def test_a_replay_that_does_not_learn_is_noticed(make_federation, make_model, monkeypatch):
    """Its losses are right, because two steps at a usual rate change them by less than five percent."""
    engine = make_engine(make_federation(), make_model, "T")
    state, _ = engine.start()
    (job, *_) = jobs_of(engine, state)
    capture_here(engine, job, monkeypatch)
    learn = FlatModel.update
    for steps in (0, 2):  # no update, or each one twice
        monkeypatch.setattr(FlatModel, "update", lambda *a, n=steps: [learn(*a) for _ in range(n)])
        with pytest.raises(Uncapturable, match="replayed steps move the weights differently"):
            capture_here(engine, job, monkeypatch)


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        (HERE, "float32"),  # in bfloat16, two types of CPU differ by more than a step of this deep network
        pytest.param(GPU, "float32", marks=needs_gpu),
        pytest.param(GPU, "bfloat16", marks=needs_gpu),
    ],
)
def test_mobilenet_steps_as_torch_does(make_federation, device, precision):
    """Depthwise weights have two equivalent layouts. Neither engine takes a wrong step with them."""
    federation = make_federation()
    torch.manual_seed(0)
    network = mobilenet_v2(10, 1)
    network.classifier[0] = nn.Identity()  # each engine would draw its own dropout
    normalization = torch.full((1, 1, 1, 1), 0.3), torch.full((1, 1, 1, 1), 0.3)
    plain = Classifier(copy.deepcopy(network), *normalization).to(device).train()
    model = Classifier(network, *normalization)
    engine = make_engine(federation, None, "single", device, model=model, precision=precision)
    received = {k: v.clone() for k, v in plain.state_dict().items()}
    own = engine.federation.reference
    work = engine.method.reference_work(own, 1, np.random.default_rng(0))
    job = first_steps(engine.site.job(own, work, received, 1), 1)
    training = engine.method.training
    optimizer = torch.optim.SGD(
        plain.parameters(), work.learning_rate, training.momentum, 0, training.weight_decay, training.nesterov
    )
    steps = {k: v.to(device) for k, v in job.work.steps.items()}
    views = work.views(own.images[steps["index"]], steps)[0]
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = plain(views.contiguous(memory_format=torch.channels_last))
    loss = work.loss(logits.float(), {k: v[0] for k, v in steps.items()}, work.tables)["loss"]
    loss.backward()
    nn.utils.clip_grad_norm_(plain.parameters(), training.clip)
    optimizer.step()
    check = Check(job, {"loss": loss.item()}, {k: v.detach() for k, v in plain.named_parameters()})
    names = list(check.weights)
    by_step = engine.site.run(job)
    check.compare(by_step, names)
    ((_, by_worker),) = engine._fleet.train([job])
    check.compare(by_worker, names)
    assert not engine._fleet.eager
    moved = [
        torch.cat([(weights[k] - received[k]).flatten() for k in names])
        for weights in (check.weights, by_step.weights, by_worker.weights)
    ]
    assert moved[0].norm() > 0
    if precision == "float32":  # in bfloat16, rounding alone changes a step of this deep network by more
        for other in moved[1:]:
            assert (other - moved[0]).norm() < 0.05 * moved[0].norm()


# -- the flat model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_flat_model_steps_as_the_flat_optimizer(nesterov, clip):
    training = Training(nesterov=nesterov, clip=clip, momentum=0.8, weight_decay=1e-2)
    torch.manual_seed(0)
    ours, theirs = SmallCNN(10), SmallCNN(10)
    theirs.load_state_dict(ours.state_dict())
    flat, reference = FlatModel(ours, half=False), FlatSGD(dict(theirs.named_parameters()))
    generator = torch.Generator().manual_seed(0)
    correction = {n: torch.randn(p.shape, generator=generator) for n, p in theirs.named_parameters()}
    reference.restart(0.3, correction, measure=True)
    flat.anchor, flat.total = flat.weights.clone(), torch.zeros_like(flat.weights)
    flat.correction = flat.packed(correction)
    for _ in range(3):
        images, labels = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
        nn.functional.cross_entropy(theirs(images), labels).backward()
        reference.step(0.1, 0.8, nesterov, 1e-2, clip)
        loss = nn.functional.cross_entropy(ours(images), labels)
        flat.take(torch.autograd.grad(loss, flat.parameters))
        flat.update(torch.tensor(0.1), training, 0.3, True, True)
    for name, value in flat.named(flat.weights).items():
        torch.testing.assert_close(value, dict(theirs.named_parameters())[name], rtol=1e-4, atol=1e-6)
    for name, value in flat.named(flat.total / 3).items():
        torch.testing.assert_close(value, reference.mean_gradient()[name], rtol=1e-4, atol=1e-6)


def test_twins_follow_the_weights():
    model = SmallCNN(10)
    names = {n: p.numel() for n, p in model.named_parameters() if "fc" in n or p.dim() == 4}
    flat = FlatModel(model, half=True)
    # Each starts at a multiple of 16, and the last is filled up to one.
    assert len(flat.twins) == sum(-(-size // 16) * 16 for size in names.values())
    assert len(flat.weights) % 16 == 0 and set(flat.names[: len(names)]) == set(names)
    assert all((p.dtype == torch.bfloat16) == (n in names) for n, p in model.named_parameters())
    flat.weights.normal_()
    flat.refresh()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.float(), flat.named(flat.weights)[name], rtol=1e-2, atol=1e-2)


def test_a_model_that_shares_parameters_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match="several names"):
        FlatModel(model, half=False)


@needs_gpu
@pytest.mark.parametrize("terms", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_the_kernel_computes_what_torch_computes(terms, nesterov, clip):
    assert usable(GPU)
    training = Training(nesterov=nesterov, clip=clip)
    generator = torch.Generator(GPU).manual_seed(0)
    size = 100_003  # not a multiple of a block
    draw = lambda: torch.randn(size, device=GPU, generator=generator)  # noqa: E731
    gradient = draw().bfloat16()
    extra = [draw(), draw(), draw()] if terms else [None, None, None]
    norms = torch.stack([gradient.float().norm(), torch.tensor(3.0, device=GPU)])
    rate = torch.tensor(0.05, device=GPU)
    weights, velocity = draw(), draw()
    found = []
    for step in (update, triton_sgd.update):
        w, v, twins = weights.clone(), velocity.clone(), torch.zeros_like(gradient)
        own = [None if e is None else e.clone() for e in extra]
        step(w, v, gradient, twins, norms, rate, training, 0.1, *own)
        found.append((w, v, twins.float(), *([own[2]] if terms else [])))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2 if one is found[0][2] else 1e-5, atol=1e-5)


def test_programs_are_shared_by_centers_of_different_sizes(make_federation, make_model, monkeypatch):
    made = []
    initialize = Program.__init__

    def counted(self, worker, job):
        made.append(len(job.center))
        initialize(self, worker, job)

    monkeypatch.setattr(Program, "__init__", counted)
    monkeypatch.setattr(fleet_module, "WORKERS", 1)
    whole = make_federation(departments=3, layers=0)
    smaller = replace(
        whole.centers[0],
        values=whole.centers[0].values[:17],
        labels=whole.centers[0].labels[:17],
        truth=whole.centers[0].truth[:17],
    )
    whole = replace(whole, centers=(smaller, *whole.centers[1:]))
    rounds(make_engine(whole, make_model, "T"), 2)
    assert len(made) == 2  # the reference center's work and the centers' work
    assert np.ptp([len(c) for c in whole.centers]) > 0
