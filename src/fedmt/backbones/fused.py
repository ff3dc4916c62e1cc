"""What the networks do between their convolutions, as few kernels if they train on a GPU.

A batch norm, a residual sum and an activation are three layers that do little but pass over the memory.
`normalize` performs them together, `convolve` performs the convolutions for which cuDNN is slow or starts
slowly, and `pool` takes the maximum of 2 x 2 pixels. Elsewhere, and whenever there is any doubt, they call
the layers as they are. The results are the same up to rounding, and the names of the weights do not change.
There are no second derivatives.

`fused.enabled = False` switches this off.
"""

from __future__ import annotations

import math
import warnings
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fedmt.backbones.kernels.checking import TOLERATED, Family, errors
from fedmt.backbones.kernels.depthwise import depthwise
from fedmt.backbones.kernels.normalizing import (
    LARGEST,
    MOST_ROWS,
    UNBOUNDED,
    Bounds,
    normalized,
    normalized_by,
)
from fedmt.backbones.kernels.pointwise import pointwise
from fedmt.backbones.kernels.pooling import halved
from fedmt.backbones.kernels.stem import MOST_INPUTS, stem
from fedmt.core.kernels import usable

enabled = True
"""False: only torch's own layers are used."""

_KNOWN = (nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.MaxPool2d)

_LAYOUTS = (torch.contiguous_format, torch.channels_last)

_tested: dict[tuple[Family, torch.device, torch.dtype], bool] = {}
"""Which kernels were tested, and whether they were right."""

_BOUNDS: dict[type, Bounds] = {type(None): UNBOUNDED, nn.ReLU: (0.0, math.inf), nn.ReLU6: (0.0, 6.0)}


def normalize(
    norm: nn.Module, x: Tensor, activation: nn.Module | None = None, residual: Tensor | None = None
) -> Tensor:
    """activation(norm(x) + residual), without the parts that are not given."""
    bounds = _BOUNDS.get(type(activation)) if _fit(x, residual) and _bare(norm, activation) else None
    if bounds is not None and isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) and _takes(norm, x):
        if _by_batch(norm) and _trusted("normalizing", x):
            y, found = normalized(x, residual, norm.weight, norm.bias, norm.eps, bounds)
            if norm.track_running_stats and norm.running_mean is not None:
                _remember(norm, found, x.numel() // x.shape[1])
            return y
        mean, variance = norm.running_mean, norm.running_var
        plain = norm.training or torch.is_grad_enabled()  # known statistics have no gradients here
        if not plain and mean is not None and variance is not None and _trusted("normalizing", x):
            return normalized_by(mean, variance, x, residual, norm.weight, norm.bias, norm.eps, bounds)
    out: Tensor = norm(x)
    if residual is not None:
        out = out + residual
    return out if activation is None else cast(Tensor, activation(out))


def convolve(conv: nn.Module, x: Tensor) -> Tensor:
    """conv(x)."""
    if isinstance(conv, nn.Conv2d) and _here(x) and _bare(conv):
        one, each = _is_pointwise(conv), _is_depthwise(conv)
        first = _is_stem(conv) and not x.requires_grad
        fits = x.dim() == 4 and x.shape[1] == conv.in_channels and x.device == conv.weight.device
        if (one or each or first) and fits and _is_table(x):
            weight, kind = _cast(conv.weight), _kind(x)
            # In float32, cuDNN and matrix products have separate settings for their precision.
            half = kind == weight.dtype == torch.bfloat16
            countable = x.numel() // x.shape[1] * len(weight) < LARGEST
            if first and half and countable and _trusted("stem", weight):
                return stem(x, weight, conv.stride[0])  # it rounds the images itself
            if one and half:
                return pointwise(_cast(x), weight)
            if each and kind == weight.dtype and _trusted("depthwise", _cast(x)):
                return depthwise(_cast(x), weight, conv.stride[0])
    return cast(Tensor, conv(x))


def pool(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x), usually the maximum of 2 x 2 pixels."""
    if isinstance(layer, nn.MaxPool2d) and _here(x) and _bare(layer):
        options = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.return_indices)
        even = x.dim() == 4 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
        if options == (2, 2, 0, 1, False) and even and _is_table(x) and _trusted("pooling", x):
            return halved(x)
    return cast(Tensor, layer(x))


class ConvNorm(nn.Sequential):
    """A convolution, its batch norm and, if there is one, its activation, as children 0, 1 and 2."""

    def forward(self, x: Tensor) -> Tensor:
        if len(self) not in (2, 3):  # somebody added or removed layers
            for layer in self:
                x = layer(x)
            return x
        conv, norm, *rest = self
        return normalize(norm, convolve(conv, x), rest[0] if rest else None)


def _here(x: Tensor) -> bool:
    """Whether this device has kernels of ours, and nobody traces, compiles or transforms what they compute.

    The type comes first, because what stands for a tensor while a network is traced cannot answer the rest.
    """
    if not enabled or type(x) is not Tensor or not x.is_cuda:
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    return not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())


def _kind(tensor: Tensor) -> torch.dtype:
    """The type to which autocast casts the tensors of a convolution."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


def _cast(tensor: Tensor) -> Tensor:
    """As autocast casts the tensors of a convolution."""
    return tensor.to(_kind(tensor))


def _takes(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> bool:
    """Whether the layer has a weight and a bias for each channel. If not, it raises an error itself."""
    fits = norm.affine and x.dim() == (4 if isinstance(norm, nn.BatchNorm2d) else 2)
    fits = fits and x.shape[1] == norm.num_features and norm.weight.device == x.device
    return fits and norm.weight.is_contiguous() and norm.bias.is_contiguous()


def _by_batch(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> bool:
    """Whether the layer normalizes by the statistics of its batch, and can store what it finds."""
    return norm.training and not (norm.track_running_stats and norm.momentum is None)


@torch.no_grad()
def _remember(norm: nn.BatchNorm1d | nn.BatchNorm2d, found: Tensor, count: int) -> None:
    """Updates the layer's running statistics, as torch does. found [2, C]: the mean, and 1 / deviation."""
    assert norm.momentum is not None and norm.running_mean is not None and norm.running_var is not None
    variance = (found[1].square().reciprocal() - norm.eps).clamp_min(0) * (count / (count - 1))
    norm.running_mean.lerp_(found[0].to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), norm.momentum)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)


def _fit(x: Tensor, residual: Tensor | None) -> bool:
    if not _here(x) or not _is_table(x) or x.numel() <= x.shape[1]:  # torch refuses single values
        return False
    if residual is None:
        return True
    return residual.shape == x.shape and residual.dtype == x.dtype and _is_table(residual)


def _is_pointwise(conv: nn.Conv2d) -> bool:
    """1x1, and each filter in one piece of memory."""
    options = (conv.kernel_size, conv.stride, conv.padding, conv.groups)
    fits = options == ((1, 1), (1, 1), (0, 0), 1) and conv.bias is None
    return fits and conv.weight.stride()[:2] == (conv.in_channels, 1)


def _is_depthwise(conv: nn.Conv2d) -> bool:
    """3x3, each channel by itself, and each filter in one piece of memory."""
    options = (conv.kernel_size, conv.padding, conv.dilation, conv.padding_mode)
    fits = options == ((3, 3), (1, 1), (1, 1), "zeros") and conv.bias is None
    fits = fits and conv.groups == conv.in_channels == conv.out_channels and conv.stride in ((1, 1), (2, 2))
    return fits and conv.weight.stride() in ((9, 9, 3, 1), (9, 1, 3, 1))


def _is_stem(conv: nn.Conv2d) -> bool:
    """3x3 or 7x7, few input channels, and all filters in one piece of memory."""
    size = conv.kernel_size[0]
    options = (conv.kernel_size, conv.padding, conv.dilation, conv.padding_mode, conv.groups)
    fits = size in (3, 7) and options == ((size,) * 2, (size // 2,) * 2, (1, 1), "zeros", 1)
    fits = fits and conv.bias is None and conv.stride in ((1, 1), (2, 2)) and conv.in_channels <= MOST_INPUTS
    return fits and any(conv.weight.is_contiguous(memory_format=m) for m in _LAYOUTS)


def _is_table(x: Tensor) -> bool:
    """Whether it is [rows, channels] in memory, and its places and programs can be counted."""
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    fits = x.dim() in (2, 4) and x.dtype in (torch.bfloat16, torch.float32) and 0 < x.numel() < LARGEST
    return fits and x.numel() // x.shape[1] <= MOST_ROWS and x.is_contiguous(memory_format=layout)


def _bare(*layers: nn.Module | None) -> bool:
    """Whether calling the layers would do nothing but compute. A subclass may do anything, and so may a
    hook."""
    given = [layer for layer in layers if layer is not None]
    hooks = (
        h
        for m in given
        for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    )
    plain = all(type(layer) in _KNOWN and "forward" not in vars(layer) for layer in given)
    return plain and not any(hooks) and not _has_any_global_hook()


def _trusted(family: Family, x: Tensor) -> bool:
    """Whether the kernels can be used and are right. This is tested before their first use."""
    key = family, x.device, x.dtype
    if key not in _tested:
        if x.is_cuda and (torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode()):
            return False  # a test has to wait for the device
        _tested[key] = usable(x.device) and _right(*key)
    return _tested[key]


def _right(family: Family, device: torch.device, kind: torch.dtype) -> bool:
    try:
        wrong = [
            f"{k} is off by {v:.2g}" for k, v in errors(family, device, kind).items() if not v < TOLERATED
        ]
    except torch.cuda.OutOfMemoryError:
        raise  # that is not the kernels' fault
    except Exception as error:  # a compiler, a driver or a device that nobody has tested
        wrong = [f"{type(error).__name__}: {error}"]
    if wrong:
        warnings.warn(
            f"fedmt's own kernels for {family} do not work here ({wrong[0]}). torch's layers are used "
            "instead. This is slower and gives the same results.",
            stacklevel=2,
        )
    return not wrong
