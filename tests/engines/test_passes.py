"""Passes without gradients use batches of few sizes, and are replayed from their second use on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedmt.backbones.heads import add_heads
from fedmt.engines.eager import trainer as trainer_module
from fedmt.engines.eager.batches import padded, split_evenly
from fedmt.engines.eager.trainer import Trainer
from fedmt.engines.graphs.passes import Passes
from fedmt.methods import Training

HERE, GPU = torch.device("cpu"), torch.device("cuda")
on_both = pytest.mark.parametrize(
    "device",
    [HERE, pytest.param(GPU, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))],
    ids=str,
)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(1, 64, 16), (1, 256, 32), (32, 256, 32), (33, 256, 64), (200, 256, 256), (60, 83, 64), (70, 83, 83)],
)
def test_batches_are_filled_up(count: int, size: int, expected: int) -> None:
    batch = torch.arange(count)[:, None]
    filled = padded(batch, size)
    assert len(filled) == expected and torch.equal(filled[:count], batch)


def test_centers_of_many_sizes_have_batches_of_few() -> None:
    """At least seven eighths of the samples, spread over the whole range, are in equal batches."""
    sizes = set()
    for count in range(1, 1001):
        batches = split_evenly(torch.arange(count), 256)
        (length,) = {len(b) for b in batches}
        every = torch.cat(batches)
        assert length <= 256 and 7 / 8 * count < len(every) <= count
        assert every[0] == 0 and every[-1] >= count - 2 and len(every.unique()) == len(every)
        assert int(every.diff().max() if count > 1 else 1) <= 2
        sizes.add(length)
    assert len(sizes) <= 48


def trainer_of(make_federation, make_model, device: torch.device) -> tuple[Trainer, Tensor]:  # type: ignore[no-untyped-def]
    federation = make_federation(half=True)
    model = make_model(federation)
    add_heads(model, 10, [4])
    trainer = Trainer(model, Training(), device, federation.input, "float32")
    return trainer, federation.centers[0].values.repeat(5, 1, 1, 1)[:192].to(device)


@on_both
def test_they_give_what_plain_passes_give(make_federation, make_model, monkeypatch, device) -> None:  # type: ignore[no-untyped-def]
    """Each pass runs three times with different weights. On CUDA, the third is a replay."""
    monkeypatch.setattr(trainer_module.Trainer, "_batch_size", 64)
    trainer, samples = trainer_of(make_federation, make_model, device)
    plain = copy.deepcopy(trainer)
    trainer.passes = Passes(device)
    for seed in range(3):
        torch.manual_seed(seed)
        weights = {
            k: v + 0.05 * torch.rand_like(v) if v.is_floating_point() else v
            for k, v in plain.weights().items()
        }
        head = {"weight": torch.randn(3, 96, device=device), "bias": torch.randn(3, device=device)}
        found = []
        for each in (plain, trainer):
            each.load(weights)
            own = [each.predict(samples[:150]), each.predict(samples[:150], 1)]
            own += each.predict_by(samples[:150], [head])
            statistics = each.statistics(samples)
            each.load(weights)
            found.append([*own, *statistics.values()])
            assert list(statistics) == [k for k in weights if "running" in k]
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)
    if device == GPU:
        assert sum(v is not None for v in trainer.passes._known.values()) >= 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("wrong", ["waits", "differs"])
def test_what_cannot_be_replayed_is_not(wrong: str) -> None:
    """A pass that reads a value on the host, and one that depends on whether it is captured."""

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if wrong == "waits":
                return x * (1.0 if x.sum().item() > -1e9 else 2.0)
            return x * (5.0 if torch.cuda.is_current_stream_capturing() else 1.0)

    passes, model = Passes(GPU), Odd()
    for number in range(4):
        batch = torch.full((4, 3), float(number + 1), device=GPU)
        assert torch.equal(passes("odd", model, batch), batch)
    assert passes._refused
