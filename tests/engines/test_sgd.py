"""The SGD step: its definition against torch's own, and every optimization of it against the definition."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmt.aggregation import FedAvgM, FedProx, Scaffold, packed
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.core.kernels import usable
from fedmt.engines.eager.sgd import FlatSGD, sgd_step
from fedmt.engines.graphs.flat import FlatModel
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, Training

GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
few = settings(max_examples=30)

OPTIONS = st.fixed_dictionaries(
    {
        "momentum": st.sampled_from([0.0, 0.8]),
        "nesterov": st.booleans(),
        "weight_decay": st.sampled_from([0.0, 0.01]),
        "clip": st.sampled_from([0.0, 0.5, 100.0]),
    }
)
SEEDS = st.integers(0, 2**32)
TERMS = st.tuples(st.booleans(), st.booleans())  # FedProx, SCAFFOLD
RATE, MU = 0.1, 0.3
SHAPES = {"conv": (2, 3, 1, 2), "bias": (4,), "linear": (3, 2)}


@dataclass
class Reference:
    """`sgd_step` in float64, step after step, on one vector."""

    weights: Tensor
    options: dict
    anchor: Tensor | None = None
    correction: Tensor | None = None

    def __post_init__(self) -> None:
        self.weights = self.weights.double()
        self.velocity = torch.zeros_like(self.weights)
        self.total = torch.zeros_like(self.weights)

    def step(self, gradient: Tensor) -> None:
        self.weights, self.velocity, clipped = sgd_step(
            self.weights, self.velocity, gradient.double(), RATE, **self.options,
            correction=None if self.correction is None else self.correction.double(),
            proximal=MU, anchor=None if self.anchor is None else self.anchor.double(),
        )  # fmt: skip
        self.total += clipped


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found.double().cpu(), expected.cpu(), rtol=tolerance, atol=tolerance)


@few
@given(SEEDS, OPTIONS)
def test_the_definition_is_torchs(seed, options):
    """In float64, with clipping over several tensors as if they were one."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    ours = Reference(start, options)
    theirs = [nn.Parameter(part.clone()) for part in start.split([3, 4])]
    told = {k: v for k, v in options.items() if k != "clip"} | {"nesterov": False}
    if options["momentum"] > 0:  # torch requires it for Nesterov; without it, both are plain SGD
        told["nesterov"] = options["nesterov"]
    optimizer = torch.optim.SGD(theirs, lr=RATE, **told)
    for _ in range(4):
        gradient = torch.randn(7, generator=generator, dtype=torch.float64)
        for parameter, part in zip(theirs, gradient.split([3, 4]), strict=True):
            parameter.grad = part.clone()
        if options["clip"] > 0:
            torch.nn.utils.clip_grad_norm_(theirs, options["clip"])
        optimizer.step()
        ours.step(gradient)
    torch.testing.assert_close(ours.weights, torch.cat([p.detach() for p in theirs]), rtol=1e-12, atol=1e-12)


def test_the_definition_changes_nothing_that_it_is_given():
    given = [torch.randn(5) for _ in range(5)]
    before = [value.clone() for value in given]
    weights, velocity, gradient, correction, anchor = given
    sgd_step(weights, velocity, gradient, 0.1, 0.9, True, 0.01, 0.5, None, correction, 0.3, anchor)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


@few
@given(SEEDS, OPTIONS, TERMS)
def test_flat_sgd_is_the_definition(seed, options, terms):
    generator = torch.Generator().manual_seed(seed)
    flat = FlatSGD({n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in SHAPES.items()})
    correction = {n: torch.randn(s, generator=generator) for n, s in SHAPES.items()} if terms[1] else {}
    flat.restart(MU if terms[0] else 0.0, correction, measure=True)
    flat_correction = torch.cat([c.flatten() for c in correction.values()]) if correction else None
    reference = Reference(
        flat.weights.clone(), options, flat.weights.clone() if terms[0] else None, flat_correction
    )
    for _ in range(4):
        gradient = torch.randn(len(flat.weights), generator=generator)
        flat.gradient.copy_(gradient)
        flat.step(RATE, **options)
        reference.step(gradient)
    assert_near(flat.weights, reference.weights)
    assert_near(flat.velocity, reference.velocity)
    mean = torch.cat([v.flatten() for v in flat.mean_gradient().values()])
    assert_near(mean, reference.total / 4)


@few
@given(SEEDS, OPTIONS, TERMS, st.booleans())
def test_a_flat_model_takes_the_same_step(seed, options, terms, half):
    """Its vectors are in two parts. With `half`, the first part has bfloat16 twins and gradients."""
    steps_of_a_flat_model(torch.device("cpu"), seed, options, terms, half)


@needs_gpu
@few
@given(SEEDS, OPTIONS, TERMS, st.booleans())
def test_the_kernel_takes_the_same_step(seed, options, terms, half):
    assert usable(GPU)
    steps_of_a_flat_model(GPU, seed, options, terms, half)


def steps_of_a_flat_model(device, seed, options, terms, half):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).to(device)
    flat = FlatModel(model, half)
    assert len(flat.twins) == (80 if half else 0) and len(flat.weights) == (96 if half else 48)
    flat.total = torch.zeros_like(flat.weights)
    flat.anchor = flat.weights.clone() if terms[0] else None
    flat.correction = torch.randn_like(flat.weights) if terms[1] else None
    reference = Reference(flat.weights.clone(), options, flat.anchor, flat.correction)
    training = replace(Training(), **options)
    rate = torch.tensor(RATE, device=device)
    for _ in range(4):
        gradients = [torch.randn_like(p) for p in flat.parameters]
        flat.take(gradients)
        flat.update(rate, training, MU if terms[0] else 0.0, terms[1], True)
        reference.step(flat.packed(dict(zip(flat.names, gradients, strict=True))).double())
        torch.testing.assert_close(flat.twins, flat.weights[: len(flat.twins)].bfloat16(), rtol=0, atol=0)
    assert_near(flat.weights, reference.weights)
    assert_near(flat.velocity, reference.velocity)
    assert_near(flat.total, reference.total)


QUICK = Training(rounds=2, batch_size=10, reference_batch_size=10, warmup_epochs=1, learning_rate=RATE)


@pytest.mark.parametrize("strategy", [FedAvgM(), FedProx(mu=MU), Scaffold()], ids=lambda s: s.name)
def test_a_worker_takes_the_same_step(make_federation, make_model, monkeypatch, strategy):
    """The captured path, with steps that are called: the model's weights, and also a learnable M."""
    method = FedMT(QUICK, Augmentation(), correspondence="estimated", estimator="learnable", projection="all")
    federation = make_federation(half=True)
    engine = LocalEngine(federation, method, make_model(federation), strategy=strategy, graphs=True)
    state, _ = engine.start()
    if strategy.corrects:
        control = {k: torch.full_like(v, 1e-3) for k, v in state.weights.items() if k in engine._parameters}
        state = replace(state, server=packed("control", control))
    job = engine.site.plan(engine.federation.centers[0], state.weights, state.server, {}, 1)
    (worker,) = engine._fleet._available()[:1]
    seen = []
    gradient_of = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: seen.append(gradient_of(*a, **k)) or seen[-1])
    list(engine._fleet.train([job]))
    names, steps = worker.flat.names, seen[-len(job.work) :]  # the first is a trial step
    assert len(steps) == len(job.work) > 2
    whole = {"momentum": QUICK.momentum, "nesterov": QUICK.nesterov}
    options = {**whole, "weight_decay": QUICK.weight_decay, "clip": QUICK.clip}
    start = worker.flat.packed(job.received)
    correction = worker.flat.packed(job.terms.correction) if strategy.corrects else None
    model = Reference(start, options, start if strategy.proximal else None, correction)
    free = Reference(job.work.trainable["free"].flatten(), whole)
    for gradients in steps:
        model.step(worker.flat.packed(dict(zip(names, gradients, strict=False))))
        free.step(gradients[-1].flatten())
    assert_near(worker.flat.weights, model.weights)
    (program,) = (p for p in worker._programs.values() if p.trainable)
    assert_near(program.trainable["free"].detach().flatten(), free.weights)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0])
def test_steps_are_torchs(nesterov, clip):
    torch.manual_seed(0)
    ours = SmallCNN(10).to(memory_format=torch.channels_last)
    theirs = copy.deepcopy(ours)
    flat = FlatSGD(dict(ours.named_parameters()))
    optimizer = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=1e-3
    )
    for _ in range(4):
        images, labels = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
        torch.nn.functional.cross_entropy(ours(images), labels).backward()
        flat.step(0.1, 0.9, nesterov, 1e-3, clip)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(theirs(images), labels).backward()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
        assert mine.stride() == other.stride()


def test_restart_forgets_the_momentum_and_loading_keeps_the_views():
    model = SmallCNN(10)
    flat = FlatSGD(dict(model.named_parameters()))
    before = copy.deepcopy(model.state_dict())
    model(torch.rand(4, 1, 28, 28)).sum().backward()
    flat.step(0.1, 0.9, True, 0.0, 0.0)
    assert flat.velocity.abs().sum() > 0 and flat.gradient.abs().sum() == 0
    flat.restart()
    assert flat.velocity.abs().sum() == 0
    model.load_state_dict(before)
    assert torch.equal(flat.weights[: 16 * 25], before["features.0.0.weight"].flatten())
