"""Every backbone on the fast path, including dropout and stochastic depth, against the step-by-step engine.

On a CPU, the steps are called. On CUDA, they are captured and replayed.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmt import Center, Correspondence, Federation, LabelSpace
from fedmt.backbones import Classifier, build
from fedmt.backbones.dropout import Dropout
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.engines.graphs.worker import first_steps
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Job
from fedmt.inputs import Images, Vectors
from fedmt.methods import FedMT, Training

HERE, GPU = torch.device("cpu"), torch.device("cuda")
on_both = pytest.mark.parametrize(
    "device",
    [HERE, pytest.param(GPU, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))],
    ids=str,
)
QUICK = Training(
    local_epochs=1,
    batch_size=8,
    reference_epochs=1,
    reference_batch_size=8,
    warmup_epochs=1,
    learning_rate=0.01,
)


class Drops(SmallCNN):
    """A user's network whose dropout the engine replaces: of whole channels first, then of features."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes, 1)
        self.channels, self.values = nn.Dropout2d(0.3), nn.Dropout(0.3)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(self.values(self.channels(images)))


class Functional(SmallCNN):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(images, 0.1, self.training))


class Attends(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.attention, self.fc = nn.MultiheadAttention(16, 2, dropout=0.1), nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(1)[:, :16]
        logits: Tensor = self.fc(self.attention(rows, rows, rows)[0])
        return logits


def federation(shape: tuple[int, ...], samples: int = 16) -> Federation:
    rng = np.random.default_rng(0)
    fine, coarse = LabelSpace("fine", ["a", "b", "c"]), LabelSpace("coarse", ["ab", "c"])
    m = Correspondence([[1, 1, 0], [0, 0, 1]], fine, coarse)
    if len(shape) == 1:
        values = torch.tensor(rng.normal(size=(samples, *shape)), dtype=torch.float32)
    else:
        values = torch.tensor(rng.integers(256, size=(samples, *shape)), dtype=torch.uint8)
    labels = torch.arange(samples) % 3
    input: Any = Vectors(shape) if len(shape) == 1 else Images(shape)
    reference = Center("reference", values, fine, labels, input=input)
    center = Center("center", values.flip(0), coarse, labels.flip(0) // 2, m, input=input)
    return Federation(
        fine, reference, (center,), (Center("test", values[:6], fine, labels[:6], input=input),)
    )


def engine_of(own: Federation, network: nn.Module, device: torch.device, graphs: bool = True) -> LocalEngine:
    model = Classifier(network, *own.input.statistics(own.reference.values))
    return LocalEngine(
        own, FedMT(QUICK, own.input.views(), xi=0.1), model, 0, device, "float32", graphs=graphs
    )


def job_of(engine: LocalEngine, count: int) -> Job:
    job = engine.site.plan_reference(engine.federation.reference, engine.trainer.weights(), {}, {}, 1)
    assert job is not None
    return first_steps(job, count)


def assert_engines_agree(engine: LocalEngine, steps: int = 1) -> None:
    """The first steps of both engines move the weights to the same values.

    One step agrees to the last digits. In a second step, the rounding errors of these deep networks have
    grown a thousandfold, but a wrong mask would still stand out.
    """
    assert engine._fleet is not None
    for count in range(1, steps + 1):
        job = job_of(engine, count)
        plain = engine.site.run(job)
        weights = {k: v.clone() for k, v in plain.weights.items()}
        ((_, fast),) = engine._fleet.train([job])
        assert not engine._fleet.eager
        assert fast.losses["loss"] == pytest.approx(plain.losses["loss"], rel=2e-3)
        assert list(fast.weights) == list(weights)
        names = [k for k in weights if k in engine._parameters]
        expected, found = (
            torch.cat([(w[k] - job.received[k]).flatten() for k in names]) for w in (weights, fast.weights)
        )
        tolerance = (1e-4 if engine.device == HERE else 2e-2) if count == 1 else 0.2
        assert 0 < expected.norm() < 1
        assert (found - expected).norm() < tolerance * expected.norm(), count


@on_both
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (3, 8, 8)),
        ("resnet9", (3, 8, 8)),
        ("resnet50", (3, 8, 8)),
        ("mobilenet_v2", (3, 32, 32)),
        ("mlp", (7,)),
    ],
)
def test_the_engines_agree(name: str, shape: tuple[int, ...], device: torch.device) -> None:
    own = federation(shape)
    torch.manual_seed(0)
    engine = engine_of(own, build(name, 3, own.input), device)
    drops = any(isinstance(layer, Dropout) for layer in engine.model.modules())
    assert drops == (name in ("mobilenet_v2", "mlp"))
    assert_engines_agree(engine, steps=2 if drops else 1)


@on_both
def test_a_users_dropout_is_replayed_and_resumed(device: torch.device) -> None:
    """Rounds of both engines agree, and another engine continues from a state to the same weights."""
    own = federation((1, 28, 28))
    found = []
    for graphs in (False, True, True):
        torch.manual_seed(0)
        engine = engine_of(own, Drops(3), device, graphs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state, _ = engine.round(engine.start()[0])
            if len(found) == 2:  # whatever it did before, it continues from here
                state = found[1][0]
            after, _ = engine.round(state)
        found.append((state, after))
    for name, value in found[0][1].weights.items():
        torch.testing.assert_close(found[1][1].weights[name], value, rtol=1e-2, atol=2e-3)
        torch.testing.assert_close(found[2][1].weights[name], found[1][1].weights[name], rtol=1e-2, atol=2e-3)
        if device == HERE:
            assert torch.equal(found[2][1].weights[name], found[1][1].weights[name])


def test_masks_change_with_center_round_and_step() -> None:
    engine = engine_of(federation((1, 28, 28)), Drops(3), HERE)
    (layer,) = (m for n, m in engine.model.named_modules() if n.endswith("values"))
    seen: list[Tensor] = []
    layer.register_forward_hook(lambda _, inputs, out: seen.append(out == 0))
    received = engine.trainer.weights()
    for center in (engine.federation.reference, engine.federation.centers[0]):
        for number in (1, 2):
            work = first_steps(job_of(engine, 2), 2).work
            engine.site.run(engine.site.job(center, work, received, number))
    assert len(seen) == 8
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (Functional, r"in a function such as torch\.nn\.functional\.dropout; layers of nn\.Dropout are fine"),
        (Attends, r"in MultiheadAttention 'backbone\.attention'"),
    ],
)
def test_what_draws_by_itself_is_named(network: Any, said: str) -> None:
    engine = engine_of(federation((1, 28, 28)), network(3), HERE)
    assert engine._fleet is not None
    with pytest.warns(UserWarning, match=said):
        list(engine._fleet.train([job_of(engine, 1)]))


@on_both
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10t", {"drop_rate": 0.0, "drop_path_rate": 0.2}),
        ("mobilenetv3_small_050", {"drop_rate": 0.0}),
        ("convnext_atto", {"drop_rate": 0.2, "drop_path_rate": 0.2}),
        ("vit_tiny_patch16_224", {"img_size": 32, "proj_drop_rate": 0.1, "drop_path_rate": 0.2}),
    ],
)
def test_networks_of_timm(name: str, options: dict[str, Any], device: torch.device) -> None:
    try:
        import timm
    except Exception as error:  # if its torchvision was built for another torch
        pytest.skip(f"timm cannot be imported: {error}")
    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=False, num_classes=3, **options)
    engine = engine_of(federation((3, 32, 32)), network, device)
    drops = any(isinstance(layer, Dropout) for layer in engine.model.modules())
    assert drops == any(value for key, value in options.items() if "drop" in key)
    assert_engines_agree(engine, steps=2 if drops else 1)


def test_the_benchmark_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs benchmarks/backbones.py with its tiny size."""
    # As in a normal run, a script finds the modules in its own folder.
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    benchmark = importlib.import_module("backbones")
    monkeypatch.setattr(benchmark.fused, "enabled", True)  # the benchmark changes it
    options = argparse.Namespace(tiny=True, rounds=1, workers=None, search=False, no_step=False, plain=False)
    found = benchmark.measure("mlp", options)
    # 2 centers of 16 samples in steps of 8, and four epochs of the reference center's 20 in steps of 10.
    assert found["views_per_step"] == 16 and found["views"] == 2 * 2 * 16 + 4 * 2 * 20
    assert found["workers"] == 2 and not found["fell_back"]
    # Not "startup", a difference of times, which at this size another process can make negative.
    assert all(found[key] > 0 for key in ("rate", "step_rate", "of ceiling", "of same", "round"))
    assert "of the ceiling" in benchmark.line("mlp", found)
