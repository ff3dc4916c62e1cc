"""A compiled network trains to the same weights, and one that cannot be compiled trains uncompiled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedmt.engines import compiled as compiled_module
from fedmt.engines.compiled import compiled
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, Training

QUICK = Training(
    rounds=2, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=10, warmup_epochs=1
)
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))


def trained(make_federation, make_model, device, compile):
    federation = make_federation()
    engine = LocalEngine(
        federation, FedMT(replace(QUICK, learning_rate=0.01), Augmentation(), xi=0.1), make_model(federation),
        0, torch.device(device), "float32", graphs=True, compile=compile,
    )  # fmt: skip
    state, _ = engine.start()
    state, _ = engine.round(state)
    return engine, state.weights


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_compiled_network_trains_to_the_same_weights(make_federation, make_model, device, monkeypatch):
    if device == "cpu":  # only the first stage: the kernels of the last would take a minute to build
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    engine, found = trained(make_federation, make_model, device, compile=True)
    assert engine.trainer.compiled is not None and not engine.trainer.compiled.failed
    _, expected = trained(make_federation, make_model, device, compile=False)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-2, atol=1e-3 if device == "cpu" else 5e-3)


def test_a_network_that_cannot_be_compiled_trains_as_it_is(make_federation, make_model, monkeypatch):
    def broken(function, **options):
        def fail(*arguments):
            raise RuntimeError("no such kernel\nand more")

        return fail

    monkeypatch.setattr(compiled_module.torch, "compile", broken)
    with pytest.warns(UserWarning, match=r"not compiled \(RuntimeError: no such kernel\)"):
        _, found = trained(make_federation, make_model, "cpu", compile=True)
    _, expected = trained(make_federation, make_model, "cpu", compile=False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_running_averages_are_not_compiled():
    model = torch.nn.Linear(1, 1)
    assert compiled(model, QUICK, False) is None
    assert compiled(model, QUICK, True) is not None
    assert compiled(model, replace(QUICK, batch_norm="running"), True) is None
