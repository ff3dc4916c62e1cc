"""Our own kernels against float64: on CUDA, or in Triton's interpreter without a GPU.

    TRITON_INTERPRET=1 pytest tests/backbones/test_kernels.py

`test_fused.py` starts this, if Triton is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.backbones import fused
from fedmt.backbones.kernels import checking, depthwise, normalizing, pooling, stem
from fedmt.backbones.kernels.pointwise import pointwise
from fedmt.backbones.mobilenet import InvertedResidual
from fedmt.backbones.resnet import BasicBlock, Bottleneck
from fedmt.backbones.resnet9 import Shrink
from fedmt.core import static_bn
from fedmt.core.kernels import tl, triton, usable

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
interpreted = os.environ.get("TRITON_INTERPRET") == "1" and triton is not None
pytestmark = pytest.mark.skipif(not (usable(DEVICE) if CUDA else interpreted), reason="needs Triton")


@pytest.fixture(autouse=True)
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of Triton 3.6 converts arrays of one element to numbers, which numpy 2.4 refuses."""
    if interpreted:
        from triton.runtime import interpreter

        plain = interpreter._patch_lang_tensor

        def patched(tensor: object, scope: Any) -> None:
            plain(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda own: own.handle.data.item())

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
        monkeypatch.setattr(stem, "KIND", tl.float32)  # it cannot multiply numbers in bfloat16


ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], normalizing.Bounds]] = {
    "none": (lambda z: z, normalizing.UNBOUNDED),
    "relu": (F.relu, (0.0, float("inf"))),
    "relu6": (F.relu6, (0.0, 6.0)),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalizing.laid_out(values) if len(shape) == 4 else values


def gradients(function: Callable[..., Tensor], dy: Tensor, *values: Tensor | None) -> list[Tensor]:
    """The result and the gradients of all values, as float64 in host memory."""
    given = [None if v is None else v.detach().requires_grad_() for v in values]
    y = function(*given)
    own = torch.autograd.grad(y, [v for v in given if v is not None], dy.to(y.device, y.dtype))
    return [t.detach().double().cpu() for t in (y, *own)]


def compare(
    plain: Callable[..., Tensor],
    own: Callable[..., Tensor],
    dy: Tensor,
    *values: Tensor | None,
    kind: torch.dtype = torch.float32,
    tolerance: float | None = None,
) -> None:
    """Both functions' results and gradients, relative to their length. Vectors stay in float32."""
    kinds = [kind if v is not None and v.dim() > 1 else torch.float32 for v in values]
    rounded = [None if v is None else v.to(k).double() for v, k in zip(values, kinds, strict=True)]
    given = [None if v is None else v.to(DEVICE, k) for v, k in zip(values, kinds, strict=True)]
    dy = dy.to(kind).double()
    if tolerance is None:
        tolerance = 1e-5 if kind == torch.float32 else 1e-2
    expected, found = gradients(plain, dy, *rounded), gradients(own, dy, *given)
    for number, (e, f) in enumerate(zip(expected, found, strict=True)):
        assert e.shape == f.shape and f.isfinite().all()
        assert (f - e).norm() <= tolerance * e.norm() + 1e-12, (number, (f - e).norm() / e.norm())


def both(activation: str, epsilon: float = 1e-5) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    act, bounds = ACTIVATIONS[activation]

    def plain(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
        out = F.batch_norm(x, None, None, weight, bias, training=True, eps=epsilon)
        return act(out if residual is None else out + residual)

    def own(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
        return normalizing.normalized(x, residual, weight, bias, epsilon, bounds)[0]

    return plain, own


@pytest.fixture(params=["whole", "parts"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One kernel each way, or two. In the latter, several parts are added up in several turns."""
    if request.param == "parts":
        monkeypatch.setattr(normalizing, "WHOLE", {})
        monkeypatch.setattr(normalizing, "PARTS", 2)
        monkeypatch.setattr(normalizing, "division", lambda rows, columns: (256, -(-rows // 256), 384))
    return str(request.param)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [3, 24, 64, 96, 130])
@pytest.mark.parametrize("residual", [True, False], ids=["sum", "no sum"])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_batch_norm(activation: str, residual: bool, channels: int, kind: torch.dtype, variant: str) -> None:
    shape = (7, channels, 9, 11)
    # Few values are near 6, where rounding to bfloat16 decides about the gradient.
    weight, bias = 2 + 0.5 * normal(channels, seed=2), normal(channels, seed=3) + 1
    other = normal(*shape, seed=4) if residual else None
    x, dy = 3 * normal(*shape, seed=1) + 1, normal(*shape, seed=5)
    loose = 0.1 if kind == torch.bfloat16 and activation == "relu6" and residual else None
    compare(*both(activation), dy, x, weight, bias, other, kind=kind, tolerance=loose)


@pytest.mark.parametrize("rows", [2, 511, 512, 513, 1600, 2048, 2049, 4500])
def test_batch_norm_of_vectors_of_any_number(rows: int) -> None:
    """Both sides of each limit between variants, with the real division into parts."""
    weight, bias = normal(24, seed=2), normal(24, seed=3)
    values = normal(rows, 24, seed=1), weight, bias, normal(rows, 24, seed=4)
    # With two rows, the variance may be small and the gradients the difference of large numbers.
    compare(*both("relu"), normal(rows, 24, seed=5), *values, tolerance=1e-3 if rows == 2 else None)


def test_the_division_covers_all_rows() -> None:
    for rows in (2049, 6400, 25_600, 102_400, 409_600, 3_072_000):
        for channels in (3, 16, 64, 96, 512, 2048):
            columns = -(-channels // normalizing.CHANNELS)
            span, parts, reach = normalizing.division(rows, columns)
            assert (parts - 1) * span < rows <= parts * span
            assert span % normalizing.ROWS == reach % normalizing.ROWS == 0 and reach > 0
            assert parts <= 256


def test_a_large_mean_leaves_the_variance_as_it_is(variant: str) -> None:
    """float32 has six digits left of a deviation of 0.02 around 1000, and sums of squares have none."""
    x = 1000 + 0.02 * normal(2000, 8, seed=1)
    compare(*both("none"), normal(2000, 8), x, torch.ones(8), torch.zeros(8), tolerance=5e-3)


def test_an_outlier_in_the_first_row_costs_no_digits(variant: str) -> None:
    x = normal(2000, 8, seed=1)
    x[0] = 1e4
    compare(*both("none"), normal(2000, 8), x, torch.ones(8), torch.zeros(8), tolerance=1e-4)


def test_rows_without_a_gradient_and_channels_without_a_deviation(variant: str) -> None:
    x, dy = normal(600, 24, seed=1), normal(600, 24, seed=2)
    x[:, 3] = 1.5
    dy[100:] = 0
    dy[:, 5] = 0
    plain, own = both("relu")
    compare(plain, own, dy, x, normal(24, seed=3), normal(24, seed=4) + 0.5, normal(600, 24, seed=5))
    _, *zeros = gradients(own, 0 * dy, *(t.float().to(DEVICE) for t in (x, dy[0], dy[1])))
    assert all(not g.any() for g in zeros)


def test_what_is_not_a_number_stays_that(variant: str) -> None:
    """A diverged network must not look as if it answered 0."""
    x = normal(600, 8).float().to(DEVICE)
    x[17, 3] = float("nan")
    y = both("relu6")[1](x, torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE))
    assert y[:, 3].isnan().all() and not y[:, 4].isnan().any()


def test_the_same_bits_each_time(variant: str) -> None:
    x, residual = (normal(900, 40, seed=s).bfloat16().to(DEVICE) for s in (1, 2))
    weight, bias = (normal(40, seed=s).float().to(DEVICE) for s in (3, 4))
    runs = [gradients(both("relu")[1], normal(900, 40, seed=5), x, weight, bias, residual) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(1, 3, 1, 1), (2, 24, 4, 4), (3, 96, 7, 5), (2, 40, 16, 9), (5, 130, 2, 1)]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions(stride: int, shape: tuple[int, ...], kind: torch.dtype) -> None:
    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, stride=stride, padding=1, groups=shape[1])

    def own(x: Tensor, weight: Tensor) -> Tensor:
        return depthwise.depthwise(x, weight, stride)

    x, weight = normal(*shape, seed=1), normal(shape[1], 1, 3, 3, seed=2)
    dy = normal(*plain(x, weight).shape, seed=3)
    compare(plain, own, dy, x, weight, kind=kind)


def test_gradients_of_filters_are_added_up_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "PARTS", 2)
    x, weight = normal(4, 24, 15, 9, seed=1), normal(24, 1, 3, 3, seed=2)
    compare(
        lambda x, w: F.conv2d(x, w, padding=1, groups=24),
        lambda x, w: depthwise.depthwise(x, w, 1),
        normal(4, 24, 15, 9, seed=3),
        x,
        weight,
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_1x1_convolutions(layout: torch.memory_format) -> None:
    x, weight = normal(3, 24, 5, 7, seed=1), normal(10, 24, 1, 1, seed=2).contiguous(memory_format=layout)
    compare(F.conv2d, pointwise, normal(3, 10, 5, 7, seed=3), x, weight)
    own = weight.float().to(DEVICE).requires_grad_()
    pointwise(x.float().to(DEVICE), own).sum().backward()
    assert own.grad is not None and own.grad.stride() == own.stride()


STEMS = {
    "3x3": (3, 1, (3, 64, 8, 6)),
    "3x3, stride 2": (3, 2, (3, 32, 9, 7)),
    "7x7, stride 2": (7, 2, (3, 64, 9, 11)),
    "7x7, wider than a tile": (7, 1, (3, 24, 3, 131)),
    "one channel": (3, 1, (1, 16, 5, 5)),
    "four channels, two tiles": (7, 2, (4, 70, 6, 6)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "last"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(STEMS))
def test_first_convolutions(name: str, kind: torch.dtype, layout: torch.memory_format) -> None:
    """For images of either type. The gradient of the weight has the weight's strides, as with 1x1."""
    size, stride, (inputs, outputs, height, width) = STEMS[name]
    x = normal(3, inputs, height, width, seed=1).to(kind)
    weight = normal(outputs, inputs, size, size, seed=2).contiguous(memory_format=layout)
    rounded = x.bfloat16().double()

    def plain(weight: Tensor) -> Tensor:
        return F.conv2d(rounded, weight, stride=stride, padding=size // 2)

    def own(weight: Tensor) -> Tensor:
        return stem.stem(x.to(DEVICE), weight, stride)

    compare(plain, own, normal(*plain(weight).shape, seed=3), weight, kind=torch.bfloat16)
    given = weight.bfloat16().to(DEVICE).requires_grad_()
    y = own(given)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
    (found,) = torch.autograd.grad(y.sum(), given)
    assert found.stride() == given.stride()


def test_gradients_of_first_filters_are_added_up_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stem, "MOST_PARTS", 3)
    monkeypatch.setattr(stem, "PARTS", 2)
    x = normal(7, 3, 20, 18, seed=1).bfloat16()
    compare(
        lambda w: F.conv2d(x.double(), w, padding=1),
        lambda w: stem.stem(x.to(DEVICE), w, 1),
        normal(7, 64, 20, 18, seed=3),
        normal(64, 3, 3, 3, seed=2),
        kind=torch.bfloat16,
    )


@pytest.mark.usefixtures("here")
def test_when_a_first_convolution_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, and unless somebody wants the gradient of the images."""
    used: list[str] = []
    plain = fused.stem
    monkeypatch.setattr(fused, "stem", lambda *given: (used.append("stem"), plain(*given))[1])
    x = normal(2, 3, 6, 6).float().to(DEVICE)
    conv = nn.Conv2d(3, 64, 3, padding=1, bias=False).to(DEVICE)
    others = {
        "bias": nn.Conv2d(3, 64, 3, padding=1),
        "dilation": nn.Conv2d(3, 64, 3, padding=2, dilation=2, bias=False),
        "no padding": nn.Conv2d(3, 64, 3, bias=False),
        "reflected": nn.Conv2d(3, 64, 3, padding=1, padding_mode="reflect", bias=False),
        "groups": nn.Conv2d(3, 63, 3, padding=1, groups=3, bias=False),
    }
    fused.convolve(conv, x)
    assert not used  # in float32
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        found = fused.convolve(conv, x)
        assert used == ["stem"]
        torch.testing.assert_close(found, conv(x), rtol=0.02, atol=0.02)
        for other in others.values():
            fused.convolve(other.to(DEVICE), x)
        fused.convolve(conv, x.clone().requires_grad_())
        fused.convolve(conv, x.contiguous())
    assert used == ["stem"]


# -- layers that use them ---------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers use the kernels on this device, even if it is a CPU."""
    monkeypatch.setattr(fused, "_here", lambda x: fused.enabled)
    monkeypatch.setattr(fused, "usable", lambda device: True)
    monkeypatch.setattr(fused, "_tested", {})
    monkeypatch.setattr(fused, "_right", lambda *_: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "basic": lambda: BasicBlock(8, 8, 1),
    "basic with a projection": lambda: BasicBlock(8, 16, 2),
    "bottleneck": lambda: Bottleneck(32, 8, 1),
    "inverted": lambda: InvertedResidual(8, 8, 1, 6),
    "inverted with a stride": lambda: InvertedResidual(8, 16, 2, 6),
    "pooled": lambda: Shrink(8, 16),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", list(BLOCKS))
def test_blocks_of_the_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block = BLOCKS[name]().train().to(DEVICE).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    static_bn.set_static(block, True)
    size = (8, 6) if name == "pooled" else (9, 7)
    x = normal(3, 32 if name == "bottleneck" else 8, *size).float().to(DEVICE)
    used: list[str] = []

    def count(name: str) -> None:
        plain = getattr(fused, name)
        monkeypatch.setattr(fused, name, lambda *arguments: (used.append(name), plain(*arguments))[1])

    for function in ("normalized", "depthwise", "pointwise", "halved"):
        count(function)
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(fused, "enabled", enabled)
        given = x.clone().requires_grad_()
        y = block(given)
        torch.manual_seed(1)
        gradient = torch.autograd.grad(y, [given, *block.parameters()], torch.randn(y.shape).to(y))
        found.append([y.detach(), *gradient])
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in block.modules())
    expected = {"normalized": norms}
    if name.startswith("inverted"):
        expected |= {"depthwise": 1}  # and no matrix products, whose precision is set elsewhere in float32
    if name == "pooled":
        expected |= {"halved": 1}
    assert {f: used.count(f) for f in used} == expected
    for own, plain in zip(*found, strict=True):
        torch.testing.assert_close(own, plain, rtol=1e-3, atol=1e-3)
        assert (own - plain).norm() < 1e-4 * (plain.norm() + 1)  # some gradients are nearly 0


@pytest.mark.usefixtures("here")
def test_layers_that_do_more_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cumulative averages, gradients in evaluation, hooks, other layouts and types."""
    monkeypatch.setattr(fused, "normalized", lambda *_: pytest.fail("this needs the layer itself"))
    norm, x = nn.BatchNorm2d(8, momentum=None).to(DEVICE), normal(3, 8, 4, 4).float().to(DEVICE)
    assert fused.normalize(norm, x).shape == x.shape  # averages over all batches
    assert norm.num_batches_tracked == 1
    static_bn.set_static(norm, True)
    plain = x.contiguous()
    assert torch.equal(fused.normalize(norm, plain, nn.ReLU()), norm(plain).relu())
    assert torch.equal(fused.normalize(norm, x, nn.GELU()), F.gelu(norm(x)))
    assert torch.equal(fused.normalize(norm.eval(), x), norm(x))
    seen = []
    handle = norm.train().register_forward_hook(lambda *_: seen.append(1))
    fused.normalize(norm, x)
    assert seen
    handle.remove()
    with pytest.raises(ValueError, match="more than 1 value"):
        fused.normalize(norm, x[:1, :, :1, :1])
    with pytest.raises(pytest.fail.Exception):
        fused.normalize(norm, x)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_check_before_the_first_use_passes(kind: torch.dtype) -> None:
    assert fused._right("normalizing", DEVICE, kind) and fused._right("depthwise", DEVICE, kind)
    assert fused._right("pooling", DEVICE, kind)
    assert fused._right("stem", DEVICE, torch.bfloat16)


def test_the_check_before_the_first_use_finds_wrong_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SIZES", {"512 rows": checking.SIZES["512 rows"]})
    forward, backward, filtered = normalizing.forward, normalizing.backward, depthwise.filtered

    def shifted(*arguments: object) -> tuple[Tensor, Tensor]:
        y, saved = forward(*arguments)  # type: ignore[arg-type]
        return y + 0.3, saved

    def unmasked(dy: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
        dx, _, found = backward(dy, *rest)  # type: ignore[arg-type]
        return dx, dy, found

    def reversed_(x: Tensor, weight: Tensor, *rest: object, **options: object) -> Tensor:
        return filtered(x, weight.flip(2), *rest, **options)  # type: ignore[arg-type]

    for module, name, wrong, family in (
        (normalizing, "forward", shifted, "normalizing"),
        (normalizing, "backward", unmasked, "normalizing"),
        (depthwise, "filtered", reversed_, "depthwise"),
        (checking, "halved", lambda x: F.avg_pool2d(x, 2), "pooling"),
        (checking, "stem", lambda x, w, s: F.conv2d(x, w.flip(3), stride=s, padding=3), "stem"),
    ):
        with monkeypatch.context() as patch, pytest.warns(UserWarning, match="do not work here"):
            patch.setattr(module, name, wrong)
            assert not fused._right(family, DEVICE, torch.bfloat16)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 3, 2, 2), (3, 130, 4, 6), (5, 64, 8, 2)], ids=str)
def test_the_largest_of_four_pixels(shape: tuple[int, ...], kind: torch.dtype) -> None:
    """Few different values, so that most maxima stand at several places, of which the first must win."""
    x = normal(*shape).round().to(DEVICE, kind)
    dy = normal(*shape[:2], shape[2] // 2, shape[3] // 2, seed=1).to(DEVICE, kind)
    found = []
    for function in (pooling.halved, lambda x: F.max_pool2d(x, 2)):
        given = x.detach().clone(memory_format=torch.channels_last).requires_grad_()
        y = function(given)
        found.append((y.detach(), *torch.autograd.grad(y, given, dy)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert found[0][0].is_contiguous(memory_format=torch.channels_last)


def test_what_is_not_a_number_stays_visible() -> None:
    x = normalizing.laid_out(torch.zeros(1, 8, 2, 2, device=DEVICE))
    x[0, 3, 1, 0] = torch.nan
    assert torch.equal(pooling.halved(x).isnan(), F.max_pool2d(x, 2).isnan())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("shape", [(3, 16, 4, 5), (40, 24, 9, 7)], ids=["one kernel", "two kernels"])
def test_running_statistics_are_torchs(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both while they are updated and when they are used."""
    found = []
    calls: list[str] = []
    for name in ("normalized", "normalized_by"):
        plain = getattr(fused, name)
        monkeypatch.setattr(
            fused, name, lambda *a, name=name, plain=plain: (calls.append(name), plain(*a))[1]
        )
    for enabled in (True, False):
        monkeypatch.setattr(fused, "enabled", enabled)
        layer = nn.BatchNorm2d(shape[1], momentum=0.3).to(DEVICE)
        with torch.no_grad():
            layer.weight.copy_(normal(shape[1]))
        for seed in range(2):
            trained = fused.normalize(layer, 5 * normal(*shape, seed=seed).float().to(DEVICE) + 3)
        layer.eval()
        x, other = (normal(*shape, seed=s).float().to(DEVICE) for s in (2, 3))
        with torch.no_grad():
            used = fused.normalize(layer, x, nn.ReLU(), other)
        learning = fused.normalize(layer, x, nn.ReLU6())  # needs gradients, so it is torch's own
        buffers = [layer.running_mean, layer.running_var, layer.num_batches_tracked]
        found.append([trained, used, learning, *buffers])
    assert calls == ["normalized", "normalized", "normalized_by"]
    for own, plain in zip(*found, strict=True):
        torch.testing.assert_close(own, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["basic", "inverted", "pooled"])
def test_saved_tensors_may_come_back_in_another_layout(name: str) -> None:
    """As they do from `torch.autograd.graph.save_on_cpu`."""
    torch.manual_seed(0)
    block = BLOCKS[name]().train().to(DEVICE).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    static_bn.set_static(block, True)
    x = normal(3, 8, 8, 6).float().to(DEVICE)
    found = []
    for pack in (lambda t: t, lambda t: t.contiguous()):
        given = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = block(given)
        found.append(torch.autograd.grad(y.square().sum(), [given, *block.parameters()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("here")
def test_a_wrong_number_of_channels_is_an_error() -> None:
    x = normal(3, 8, 4, 4).float().to(DEVICE)
    wide = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False).to(DEVICE)
    for function in (
        lambda: fused.normalize(nn.BatchNorm2d(16).to(DEVICE), x),
        lambda: fused.normalize(nn.BatchNorm1d(8).to(DEVICE), x),
        lambda: fused.convolve(wide, x),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            function()


@pytest.mark.usefixtures("here")
def test_every_kind_of_hook_is_called() -> None:
    norm, x = nn.BatchNorm2d(8).to(DEVICE), normal(3, 8, 4, 4).float().to(DEVICE).requires_grad_()
    seen: list[str] = []
    handles = [
        norm.register_full_backward_pre_hook(lambda *_: seen.append("backward")),
        torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append("every layer")),
    ]
    for handle in handles:
        fused.normalize(norm, x).sum().backward()
        handle.remove()
    assert "backward" in seen and "every layer" in seen


@pytest.mark.usefixtures("here")
def test_running_statistics_of_a_network_in_bfloat16() -> None:
    norm = nn.BatchNorm2d(8).to(DEVICE, torch.bfloat16)
    x = (3 * normal(40, 8, 4, 4) + 1).to(DEVICE, torch.bfloat16)
    fused.normalize(norm, x)
    assert norm.running_mean is not None and norm.running_mean.dtype == torch.bfloat16
    torch.testing.assert_close(
        norm.running_mean.float(), 0.1 * x.float().mean((0, 2, 3)), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("shape", [(3, 16, 4, 5), (40, 24, 9, 7)], ids=["one kernel", "two kernels"])
def test_gradients_pass_what_is_not_a_number(shape: tuple[int, ...]) -> None:
    """As in torch, so that a run that diverges shows it."""
    x, other = (normal(*shape, seed=s).float().to(DEVICE) for s in (1, 2))
    other[0, 3, 1, 2] = torch.nan
    weight, bias = torch.ones(shape[1], device=DEVICE), torch.zeros(shape[1], device=DEVICE)
    found = []
    for own in (True, False):
        given = other.clone(memory_format=torch.channels_last).requires_grad_()
        if own:
            y, _ = normalizing.normalized(x, given, weight, bias, 1e-5, (0.0, float("inf")))
        else:
            y = F.relu(F.batch_norm(x, None, None, weight, bias, training=True) + given)
        found.append(torch.autograd.grad(y.nan_to_num(0.0).sum() + y.sum(), given)[0])
    assert found[0][0, 3, 1, 2] == found[1][0, 3, 1, 2] != 0
