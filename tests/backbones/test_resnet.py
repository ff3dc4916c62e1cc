"""ResNets have torchvision's names, shapes, sizes and initialization."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmt.backbones.resnet import resnet18, resnet18_cifar, resnet50

NORM = ("weight", "bias", "running_mean", "running_var")


def norm(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {**{f"{prefix}.{name}": (width,) for name in NORM}, f"{prefix}.num_batches_tracked": ()}


def torchvision_state(bottleneck: bool, depths: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes in torchvision's order, derived only from the architecture table."""
    state: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    inputs = 64
    for stage, (width, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), 1):
        outputs = width * 4 if bottleneck else width
        for block in range(depth):
            at = f"layer{stage}.{block}"
            shapes = (
                [(width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)]
                if bottleneck
                else [(width, inputs, 3, 3), (width, width, 3, 3)]
            )
            for i, shape in enumerate(shapes, 1):
                state |= {f"{at}.conv{i}.weight": shape, **norm(f"{at}.bn{i}", shape[0])}
            if block == 0 and inputs != outputs:
                state |= {f"{at}.downsample.0.weight": (outputs, inputs, 1, 1)}
                state |= norm(f"{at}.downsample.1", outputs)
            inputs = outputs
    return {**state, "fc.weight": (classes, inputs), "fc.bias": (classes,)}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("build", "bottleneck", "depths", "entries"),
    [(resnet18, False, (2, 2, 2, 2), 122), (resnet50, True, (3, 4, 6, 3), 320)],
)
def test_names_and_shapes_are_torchvisions(build, bottleneck, depths, entries):  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        state = build(1000).state_dict()
    expected = torchvision_state(bottleneck, depths, 1000)
    assert [(key, tuple(value.shape)) for key, value in state.items()] == list(expected.items())
    assert len(state) == entries


def test_parameter_counts() -> None:
    with torch.device("meta"):
        assert parameters(resnet18(1000)) == 11_689_512
        assert parameters(resnet50(1000)) == 25_557_032
        assert parameters(resnet18(100)) == parameters(resnet18(100, max_pool=False)) == 11_227_812
        assert parameters(resnet18(100, channels=1)) == 11_227_812 - 2 * 64 * 49


@pytest.mark.parametrize("build", [resnet18, resnet50])
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("max_pool", [True, False])
def test_forward_gives_logits(build, size, max_pool) -> None:  # type: ignore[no-untyped-def]
    model = build(7, channels=1, max_pool=max_pool).eval()
    stem = model.maxpool(model.conv1(torch.zeros(2, 1, size, size)))
    assert stem.shape[2] == (size // 4 if max_pool else size // 2)
    with torch.no_grad():
        logits = model(torch.randn(2, 1, size, size))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def test_the_network_for_cifar_keeps_all_pixels_in_its_stem() -> None:
    model = resnet18_cifar(7, channels=1).eval()
    shapes: dict[str, torch.Size] = {}
    for name in ("conv1", "maxpool", "layer1", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda _module, _args, out, name=name: shapes.__setitem__(name, out.shape[1:])
        )
    with torch.no_grad():
        assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    assert shapes == {
        "conv1": (64, 32, 32),
        "maxpool": (64, 32, 32),
        "layer1": (64, 32, 32),
        "layer4": (512, 4, 4),
    }
    # Apart from its first layer, it has the parameters of `resnet18`.
    same, own = resnet18(7, channels=1).state_dict(), model.state_dict()
    assert list(same) == list(own)
    assert [key for key in own if own[key].shape != same[key].shape] == ["conv1.weight"]


def test_the_bottleneck_strides_in_its_3x3() -> None:
    with torch.device("meta"):
        stage = resnet50(10).layer2
    strides = {name: stage.get_submodule(f"0.{name}").stride for name in ("conv1", "conv2", "downsample.0")}
    assert strides == {"conv1": (1, 1), "conv2": (2, 2), "downsample.0": (2, 2)}


def test_initialization_is_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    model = resnet18(10)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    model = resnet18(5, max_pool=False)
    model(torch.randn(4, 3, 32, 32)).logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
