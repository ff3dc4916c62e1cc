"""Layers with dropout and stochastic depth, and the layers that the engine replaces them with."""

import sys
import types

import pytest
import torch
from torch import Tensor, nn

from fedmt.backbones.dropout import Dropout, drawing_layers, reseed, with_own_masks


class DropPath(nn.Module):
    """The layer as in timm."""

    def __init__(self, drop_prob: float = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep


class StochasticDepth(nn.Module):
    """The layer as in torchvision."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, kind in (
        ("timm.layers.drop", DropPath),
        ("torchvision.ops.stochastic_depth", StochasticDepth),
    ):
        module = types.ModuleType(path)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, path, module)


def own(layer: nn.Module) -> nn.Module:
    model = nn.Sequential(layer)
    with_own_masks(model)
    reseed(model, 3)
    return model[0]


SHAPE = (40, 30, 4, 5)


@pytest.mark.parametrize(
    ("layer", "masks"),
    [
        (nn.Dropout(0.3), SHAPE),
        (nn.Dropout(0.3, inplace=True), SHAPE),
        (nn.Dropout2d(0.3), (40, 30, 1, 1)),
        (DropPath(0.3), (40, 1, 1, 1)),
        (StochasticDepth(0.3, "row"), (40, 1, 1, 1)),
        (StochasticDepth(0.3, "batch"), (1, 1, 1, 1)),
    ],
    ids=str,
)
def test_what_is_dropped_together(layer: nn.Module, masks: tuple[int, ...]) -> None:
    replaced = own(layer)
    assert isinstance(replaced, Dropout) and not replaced.state_dict()
    features = torch.rand(SHAPE) + 0.1
    found = [replaced(features) for _ in range(100)]
    for out in found[:5]:
        dropped = out == 0
        each = dropped[tuple(slice(0, n) for n in masks)]
        assert torch.equal(dropped, each.expand(SHAPE))
        torch.testing.assert_close(out[~dropped], (features / 0.7)[~dropped], rtol=1e-6, atol=0)
    share = torch.stack([(out == 0).float().mean() for out in found]).mean().item()
    assert share == pytest.approx(0.3, abs=0.15 if masks == (1, 1, 1, 1) else 0.02)
    assert torch.equal(replaced.eval()(features), features)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout1d(0.5), (50, 7)), (nn.Dropout3d(0.5), (50, 2, 3, 4))], ids=str
)
def test_without_a_batch_channels_come_first(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Both torch and fedmt drop whole entries of the first dimension."""
    for drop in (layer.train(), own(layer)):
        dropped = (drop(torch.ones(shape)) == 0).flatten(1)
        assert torch.equal(dropped.all(1), dropped.any(1)) and 0 < dropped.any(1).sum() < 50


def test_scaling_by_what_is_kept() -> None:
    out = own(DropPath(0.5, scale_by_keep=False))(torch.ones(50, 3))
    assert set(out.unique().tolist()) == {0.0, 1.0}


def test_gradients_pass_where_features_do() -> None:
    features = torch.rand(20, 10, requires_grad=True)
    out = own(nn.Dropout(0.25))(features)
    out.sum().backward()
    expected: Tensor = torch.where(out == 0, 0.0, 1 / 0.75)
    assert features.grad is not None
    torch.testing.assert_close(features.grad, expected)


def test_what_stays() -> None:
    """Layers that never draw and unknown types stay, and a layer that is used twice stays one layer."""

    class Another(nn.Dropout):
        pass

    shared = nn.Dropout(0.1)
    layers = [nn.Dropout(0.0), nn.Dropout(1.0), Another(0.2), nn.AlphaDropout(0.2), nn.ReLU()]
    model = nn.Sequential(*layers, shared, shared)
    names = list(model.state_dict())
    with_own_masks(model)
    assert [model[i] for i in range(5)] == layers and list(model.state_dict()) == names
    assert isinstance(model[5], Dropout) and model[5] is model[6]
    assert list(drawing_layers(model)) == ["Another '2'", "AlphaDropout '3'"]
