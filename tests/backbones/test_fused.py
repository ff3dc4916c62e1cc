"""Networks compute what their plain formulas compute, bit for bit on a CPU and up to rounding on CUDA."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.backbones import fused
from fedmt.backbones.mobilenet import InvertedResidual, mobilenet_v2
from fedmt.backbones.resnet import BasicBlock, Bottleneck, resnet18, resnet50
from fedmt.backbones.resnet9 import ResNet9
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.core import static_bn
from fedmt.core.kernels import triton, usable

CUDA = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not CUDA, reason="needs CUDA")


def plain_basic(block: BasicBlock, x: Tensor) -> Tensor:
    out = F.relu(block.bn1(block.conv1(x)))
    shortcut = x if block.downsample is None else block.downsample[1](block.downsample[0](x))
    return F.relu(block.bn2(block.conv2(out)) + shortcut)


def plain_bottleneck(block: Bottleneck, x: Tensor) -> Tensor:
    out = F.relu(block.bn1(block.conv1(x)))
    out = F.relu(block.bn2(block.conv2(out)))
    shortcut = x if block.downsample is None else block.downsample[1](block.downsample[0](x))
    return F.relu(block.bn3(block.conv3(out)) + shortcut)


def plain_inverted(block: InvertedResidual, x: Tensor) -> Tensor:
    out = x
    for layer in block.conv:
        if isinstance(layer, nn.Sequential):
            conv, norm, _ = layer
            out = F.relu6(norm(conv(out)))
        else:
            out = layer(out)
    return x + out if block.residual else out


BLOCKS: dict[str, tuple[nn.Module, Callable[..., Tensor], int]] = {
    "basic": (BasicBlock(8, 8, 1), plain_basic, 8),
    "basic with a projection": (BasicBlock(8, 16, 2), plain_basic, 8),
    "bottleneck": (Bottleneck(32, 8, 1), plain_bottleneck, 32),
    "bottleneck with a projection": (Bottleneck(8, 8, 2), plain_bottleneck, 8),
    "inverted": (InvertedResidual(8, 8, 1, 6), plain_inverted, 8),
    "inverted with a stride": (InvertedResidual(8, 16, 2, 6), plain_inverted, 8),
    "inverted without widening": (InvertedResidual(8, 16, 1, 1), plain_inverted, 8),
}


@pytest.mark.parametrize("name", list(BLOCKS))
@pytest.mark.parametrize("state", ["batch", "running", "evaluation"])
def test_blocks_on_a_cpu_are_their_plain_formulas(name: str, state: str) -> None:
    first, formula, channels = BLOCKS[name]
    second = copy.deepcopy(first)
    torch.manual_seed(0)
    x = torch.randn(3, channels, 6, 5)
    found = []
    for block, function in ((first, first), (second, lambda x: formula(second, x))):
        block.train(state != "evaluation")
        static_bn.set_static(block, state == "batch")
        given = x.clone().requires_grad_()
        y = function(given)
        gradients = torch.autograd.grad(y.square().sum(), [given, *block.parameters()])
        found.append([y, *gradients, *block.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_layers_are_called_on_a_cpu() -> None:
    """So hooks see them, whatever they are for."""
    network, seen = SmallCNN(3), []
    for name, layer in network.named_modules():
        if isinstance(layer, nn.BatchNorm2d | nn.ReLU | nn.Conv2d):
            layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    network(torch.randn(2, 1, 28, 28))
    assert seen == [f"features.{block}.{layer}" for block in range(4) for layer in range(3)]


def test_blocks_call_their_parts_on_a_cpu() -> None:
    """So hooks see them, and layers may be added or left out."""
    block, seen = InvertedResidual(8, 8, 1, 6), []
    block.conv.register_forward_hook(lambda *_: seen.append("conv"))
    x = torch.randn(2, 8, 6, 5)
    block(x)
    assert seen == ["conv"]
    first = block.conv[0]
    assert isinstance(first, fused.ConvNorm)
    expected = first[0](x)
    assert torch.equal(first[:1](x), expected)
    first.append(nn.Tanh())
    assert torch.equal(first(x), first[:3](x).tanh())


@pytest.mark.parametrize("build", [lambda: resnet18(5), lambda: mobilenet_v2(5), lambda: SmallCNN(5)])
def test_networks_can_be_traced(build: Callable[[], nn.Module]) -> None:
    network = build().eval()
    traced = torch.fx.symbolic_trace(network)
    x = torch.randn(2, 1 if isinstance(network, SmallCNN) else 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(traced(x), network(x))


@pytest.mark.slow
@pytest.mark.skipif(triton is None or CUDA, reason="needs Triton, and no CUDA")
def test_the_kernels_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", str(Path(__file__).with_name("test_kernels.py"))]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: resnet18(10, max_pool=False), (100, 3, 32, 32)),
    "resnet50": (lambda: resnet50(10), (8, 3, 96, 96)),
    "mobilenet_v2": (lambda: mobilenet_v2(10), (20, 3, 128, 128)),
    "small_cnn": (lambda: SmallCNN(10), (50, 1, 28, 28)),
    "resnet9": (lambda: ResNet9(10), (100, 3, 32, 32)),
}


def step_of(model: nn.Module, x: Tensor, half: bool) -> list[Tensor]:
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), torch.arange(len(x), device=x.device) % 10)
    # Detached, because a graph that is kept would tie a later capture to the stream that it was made on.
    return [logits.detach().float(), *torch.autograd.grad(loss, list(model.parameters()))]


@needs_gpu
@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("half", [True, False], ids=["bfloat16", "float32"])
def test_networks_on_cuda(name: str, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured and on another stream, with our own kernels and with torch's, against float64."""
    assert usable(torch.device("cuda"))
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build().cuda().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    static_bn.set_static(model, True)
    x = torch.randn(shape, device="cuda").contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(fused, "enabled", False)
    exact = step_of(copy.deepcopy(model).double(), x.double(), half=False)
    plain = step_of(model, x, half)
    monkeypatch.setattr(fused, "enabled", True)
    calls: list[int] = []
    normalized = fused.normalized
    monkeypatch.setattr(fused, "normalized", lambda *a: (calls.append(1), normalized(*a))[1])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        own = step_of(model, x, half)
    torch.cuda.synchronize()
    assert len(calls) == sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step_of(model, x, half)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()

    def error(found: list[Tensor]) -> float:
        return max(((f.double() - e).norm() / e.norm()).item() for f, e in zip(found, exact, strict=True))

    def cosine(found: list[Tensor]) -> float:
        a, b = (torch.cat([t.double().flatten() for t in each[1:]]) for each in (found, exact))
        return F.cosine_similarity(a, b, dim=0).item()

    for layer, gradient in zip(_owners(model), own[1:], strict=True):
        if name == "mobilenet_v2" and (fused._is_depthwise(layer) or fused._is_pointwise(layer)):
            # torch copies gradients with other strides one by one (`FlatModel.take`).
            assert gradient.stride() == layer.weight.stride()
    # Rounding grows in deep networks, so the measure is how far torch's own layers are from the truth. In
    # ResNet9, it decides which of two nearly equal pixels is the largest, and the gradient goes to that one.
    least = 1e-4 if name == "resnet9" else 1e-5
    for found in (own, captured):
        assert error(found) < 3 * error(plain) + 1e-3
        assert 1 - cosine(found) < 3 * (1 - cosine(plain)) + least


def _owners(model: nn.Module) -> list[Any]:
    """The layer of each parameter. Layers that are no convolutions look like one that is not replaced."""
    other = nn.Conv2d(2, 2, 5)
    layers = (m for m in model.modules() for _ in m.parameters(recurse=False))
    return [m if isinstance(m, nn.Conv2d) else other for m in layers]
