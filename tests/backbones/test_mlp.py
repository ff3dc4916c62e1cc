"""Networks for vectors, and dropout that can be replayed."""

import warnings
from pathlib import Path

import pytest
import torch

from fedmt.backbones import build
from fedmt.backbones.dropout import Dropout, reseed
from fedmt.core.errors import FedmtError
from fedmt.inputs import Images, Tables, Vectors


def test_shapes() -> None:
    for name in ("linear", "mlp"):
        for input in (Vectors((7,)), Tables((7,))):
            assert build(name, 3, input)(torch.zeros(5, 7)).shape == (5, 3)
    with pytest.raises(FedmtError, match=r"'mlp' takes vectors, but the samples .* are images"):
        build("mlp", 3, Images((1, 8, 8)))
    with pytest.raises(FedmtError, match=r"'resnet18' takes images, but .* are tables"):
        build("resnet18", 3, Tables((7,)))


def test_dropout_is_that_of_its_seed_and_step() -> None:
    layers = torch.nn.Sequential(Dropout(0.3), Dropout(0.3))
    ones = torch.ones(200, 50)
    reseed(layers, 2**61 + 5)
    first, second = layers[0](ones), layers[0](ones)
    share = (first == 0).float().mean().item()
    assert abs(share - 0.3) < 0.02 and torch.allclose(first[first > 0], torch.tensor(1 / 0.7))
    assert abs(first.mean().item() - 1) < 0.03
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert abs(both - 0.09) < 0.02  # the masks of different steps are independent
    other = ((first == 0) & (layers[1](ones) == 0)).float().mean().item()
    assert abs(other - 0.09) < 0.02  # so are the masks of different layers
    reseed(layers, 2**61 + 5)
    assert torch.equal(layers[0](ones), first) and torch.equal(layers[0](ones), second)
    assert torch.equal(layers.eval()(ones), ones) and not layers.state_dict()


def test_the_fast_engine_trains_it_to_the_same_weights(tmp_path: Path) -> None:
    """Without a GPU, its steps are called instead of replayed, with the same checks."""
    import numpy as np

    from fedmt.config import build_federation, parse_config, starting_model
    from fedmt.config.building import build_method
    from fedmt.engines.local import LocalEngine

    rng = np.random.default_rng(0)
    labels = np.array(["a", "b"] * 20)
    np.savez(tmp_path / "a.npz", vectors=rng.normal(size=(40, 6)) + (labels == "b")[:, None], labels=labels)
    source = {"source": "npz", "path": str(tmp_path / "a.npz")}
    config = parse_config(
        {
            "input": "vectors",
            "wanted": "kind",
            "spaces": {"kind": ["a", "b"]},
            "training": {"rounds": 1, "batch_size": 10, "warmup_epochs": 1},
            "reference": source,
            "centers": [{**source, "name": "Bonn"}, {**source, "name": "Kiel", "space": "kind"}],
        }
    )
    federation, _ = build_federation(config)
    found = []
    for graphs in (False, True):
        engine = LocalEngine(
            federation, build_method(config), starting_model(config, federation), graphs=graphs
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state, _ = engine.round(engine.start()[0])
        found.append(state.weights)
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-4, atol=1e-5)
