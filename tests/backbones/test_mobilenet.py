"""MobileNetV2 has torchvision's names, shapes, size and initialization."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmt.backbones.mobilenet import mobilenet_v2

# Hidden and output channels of torchvision's blocks features.1 to features.17.
BLOCKS = [
    (32, 16), (96, 24), (144, 24), (144, 32), (192, 32), (192, 32), (192, 64), (384, 64), (384, 64),
    (384, 64), (384, 96), (576, 96), (576, 96), (576, 160), (960, 160), (960, 160), (960, 320),
]  # fmt: skip
STRIDE_2 = {2, 4, 7, 14}


def norm(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    names = ("weight", "bias", "running_mean", "running_var")
    return {**{f"{prefix}.{name}": (width,) for name in names}, f"{prefix}.num_batches_tracked": ()}


def torchvision_state(classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes in torchvision's order, derived only from the table above."""
    state: dict[str, tuple[int, ...]] = {"features.0.0.weight": (32, 3, 3, 3), **norm("features.0.1", 32)}
    inputs = 32
    for number, (hidden, outputs) in enumerate(BLOCKS, 1):
        at, layer = f"features.{number}.conv", 0
        if hidden != inputs:
            state |= {f"{at}.0.0.weight": (hidden, inputs, 1, 1), **norm(f"{at}.0.1", hidden)}
            layer = 1
        state |= {f"{at}.{layer}.0.weight": (hidden, 1, 3, 3), **norm(f"{at}.{layer}.1", hidden)}
        state |= {f"{at}.{layer + 1}.weight": (outputs, hidden, 1, 1), **norm(f"{at}.{layer + 2}", outputs)}
        inputs = outputs
    state |= {"features.18.0.weight": (1280, 320, 1, 1), **norm("features.18.1", 1280)}
    return {**state, "classifier.1.weight": (classes, 1280), "classifier.1.bias": (classes,)}


def test_names_and_shapes_are_torchvisions() -> None:
    with torch.device("meta"):
        state = mobilenet_v2(1000).state_dict()
    expected = torchvision_state(1000)
    assert [(key, tuple(value.shape)) for key, value in state.items()] == list(expected.items())
    assert len(state) == 314


def test_parameter_count() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in mobilenet_v2(1000).parameters()) == 3_504_872


def test_strides_and_shortcuts() -> None:
    with torch.device("meta"):
        features = mobilenet_v2(10).features
    assert features.get_submodule("0.0").stride == (2, 2)
    inputs = 32
    for number, (_, outputs) in enumerate(BLOCKS, 1):
        block = features[number]
        strides = {m.stride for m in block.modules() if isinstance(m, nn.Conv2d) and m.groups > 1}
        assert strides == {(2, 2) if number in STRIDE_2 else (1, 1)}
        assert block.residual == (number not in STRIDE_2 and inputs == outputs)
        inputs = outputs


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_forward_gives_logits(size: int, channels: int) -> None:
    model = mobilenet_v2(7, channels).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def test_initialization() -> None:
    torch.manual_seed(0)
    model = mobilenet_v2(100)
    head = model.classifier[1]
    assert isinstance(head, nn.Linear)
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert (head.bias == 0).all()
    last = model.get_submodule("features.18.0")
    assert isinstance(last, nn.Conv2d)
    assert last.weight.std().item() == pytest.approx((2 / 1280) ** 0.5, rel=0.05)
