"""Are the kernels right on this device? Each is compared with torch's own layers before its first use, once
in a process. A machine that nobody has tested then trains more slowly, but not wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.backbones.kernels.depthwise import depthwise
from fedmt.backbones.kernels.normalizing import Bounds, normalized, normalized_by
from fedmt.backbones.kernels.pooling import halved
from fedmt.backbones.kernels.stem import stem

Family = Literal["normalizing", "depthwise", "pooling", "stem"]

TOLERATED = 0.02
"""Errors relative to the largest value. Rounding to bfloat16 changes a number by up to 0.004."""

SIZES = {"512 rows": (3, 16, 5, 7), "2048 rows": (6, 24, 10, 9), "parts": (21, 40, 10, 10)}
"""One size for each variant of the kernels of batch norm."""

BOUNDS: dict[str, Bounds] = {"relu": (0.0, float("inf")), "relu6": (0.0, 6.0)}

Values = dict[str, Tensor]


def errors(family: Family, device: torch.device, kind: torch.dtype) -> dict[str, float]:
    """The largest error of each result and gradient, relative to the largest value, against float64."""
    found = {}
    made = {"normalizing": _normalizing, "depthwise": _depthwise, "pooling": _pooling, "stem": _stem}
    cases = made[family]()
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for name, (values, plain, fused) in cases.items():
            exact = {k: v.to(kind if v.dim() == 4 else torch.float32).double() for k, v in values.items()}
            own = {k: v.to(device, kind if v.dim() == 4 else torch.float32) for k, v in exact.items()}
            expected, given = _results(plain, exact), _results(fused, own)
            for key, value in expected.items():
                error = (given[key].double().cpu() - value).abs().max() / value.abs().max()
                found[f"{name}: {key}"] = error.item()
    return found


Case = tuple[Values, Callable[[Mapping[str, Tensor]], Tensor], Callable[[Mapping[str, Tensor]], Tensor]]


def _normalizing() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for size, shape in SIZES.items():
        for activation in ("relu", "relu6"):
            values = {"x": 3 * _waves(shape, 1) + 1, "weight": 2 + _waves(shape[1:2], 2)}
            values["bias"] = _waves(shape[1:2], 3)
            if activation == "relu":
                values["residual"] = _waves(shape, 4)

            def plain(v: Mapping[str, Tensor], activation: str = activation) -> Tensor:
                out = F.batch_norm(v["x"], None, None, v["weight"], v["bias"], training=True)
                out = out + v["residual"] if "residual" in v else out
                return F.relu(out) if activation == "relu" else F.relu6(out)

            def fused(v: Mapping[str, Tensor], bounds: Bounds = BOUNDS[activation]) -> Tensor:
                return normalized(v["x"], v.get("residual"), v["weight"], v["bias"], 1e-5, bounds)[0]

            cases[f"{size}, {activation}"] = values, plain, fused
    known = {"mean": _waves(shape[1:2], 6), "variance": 1.5 + _waves(shape[1:2], 7)}
    cases["known statistics"] = {**values, **known}, _plain_by, _fused_by
    return cases


@torch.no_grad()
def _plain_by(v: Mapping[str, Tensor]) -> Tensor:
    return F.relu6(F.batch_norm(v["x"], v["mean"], v["variance"], v["weight"], v["bias"]))


@torch.no_grad()
def _fused_by(v: Mapping[str, Tensor]) -> Tensor:
    return normalized_by(
        v["mean"], v["variance"], v["x"], None, v["weight"], v["bias"], 1e-5, BOUNDS["relu6"]
    )


def _depthwise() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for stride in (1, 2):

        def plain(v: Mapping[str, Tensor], stride: int = stride) -> Tensor:
            return F.conv2d(v["x"], v["weight"], stride=stride, padding=1, groups=v["x"].shape[1])

        def fused(v: Mapping[str, Tensor], stride: int = stride) -> Tensor:
            return depthwise(v["x"], v["weight"], stride)

        values = {"x": _waves((5, 40, 9, 7), 1), "weight": _waves((40, 1, 3, 3), 2)}
        cases[f"stride {stride}"] = values, plain, fused
    return cases


def _pooling() -> dict[str, Case]:
    # Few different values, so that some pixels are equal.
    values = {"x": (2 * _waves((5, 40, 10, 6), 1)).round() / 2}
    return {"2 x 2": (values, lambda v: F.max_pool2d(v["x"], 2), lambda v: halved(v["x"]))}


def _stem() -> dict[str, Case]:
    image = _waves((5, 3, 9, 70), 1)  # it has no gradient

    def plain(v: Mapping[str, Tensor]) -> Tensor:
        return F.conv2d(image.to(torch.bfloat16).double(), v["weight"], stride=2, padding=3)

    def fused(v: Mapping[str, Tensor]) -> Tensor:
        return stem(image.to(v["weight"]), v["weight"], 2)

    # One case, because each further one would have to be compiled first.
    return {"7 x 7": ({"weight": _waves((64, 3, 7, 7), 2)}, plain, fused)}


def _results(function: Callable[[Mapping[str, Tensor]], Tensor], values: Values) -> Values:
    """The function's result, and the gradients of its arguments for some gradient of the result, if it has
    gradients."""
    given = {k: v.detach().requires_grad_() for k, v in values.items()}
    result = function(given)
    if not result.requires_grad:
        return {"result": result}
    gradient = _waves(tuple(result.shape), 5).to(torch.bfloat16).to(result)
    # A sum needs no gradient of its own. With one given, torch first imports sympy, which takes two seconds.
    own = torch.autograd.grad((result * gradient).sum(), list(given.values()))
    return {"result": result.detach(), **{f"gradient of {k}": g for k, g in zip(given, own, strict=True)}}


def _waves(shape: tuple[int, ...], number: int) -> Tensor:
    """Numbers from -1 to 1 that look random. The generators must stay as training left them."""
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device="cpu")
    values = torch.sin(place * place * 0.37 + place * number)
    return values.view(shape).contiguous(
        memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format
    )
