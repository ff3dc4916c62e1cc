"""Dropout that works with the fast engine: its masks depend on a seed and a count of steps.

torch's own dropout draws from a generator whose state a replayed graph does not see. Here the state is a
number in the module, which the engine sets before a center's first step and every step increments. The masks
are the same step by step, replayed, and on every device. `with_own_masks` replaces a network's original
layers by such layers. They have no weights, so the names of its weights stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedmt.inputs.vectors.views import mixed


class Dropout(nn.Dropout):
    """Sets a share `p` of the features [B, ...] to 0 and scales up the others, in training only.

    together: the number of leading dimensions that have their own mask, while the others share it: 2
        for whole channels, 1 for whole samples, 0 for the whole batch; none for single features.
    unbatched: the number of dimensions of features that come without a batch, as `nn.Dropout1d` reads [C, L].
    scaled: whether the others are scaled up.
    """

    count: Tensor

    def __init__(
        self, p: float, together: int | None = None, unbatched: int | None = None, scaled: bool = True
    ) -> None:
        super().__init__(p)
        self.together, self.unbatched, self.scaled = together, unbatched, scaled
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return features
        shape = features.shape
        if self.together is not None:
            own = self.together - (features.dim() == self.unbatched)
            shape = torch.Size([*shape[:own], *(1,) * (features.dim() - own)])
        place = torch.arange(shape.numel(), device=features.device).view(shape)
        bits = mixed((mixed(self.count) + place) & 0xFFFFFFFF)
        self.count.add_(1).bitwise_and_(0xFFFFFFFF)
        return torch.where(bits < self.p * 2**32, 0.0, features / (1 - self.p) if self.scaled else features)


def reseed(model: nn.Module, seed: int) -> None:
    """Restarts at the masks determined by `seed`. Each layer has its own."""
    for number, layer in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        layer.count.fill_((seed + number * 0x9E3779B9) & 0xFFFFFFFF)


def with_own_masks(model: nn.Module) -> None:
    """Replaces the model's layers of dropout and stochastic depth: torch's, timm's and torchvision's."""
    replaced: dict[nn.Module, Dropout] = {}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            own = replaced.get(child) or _own(child)
            if own is not None:
                replaced[child] = own.train(child.training)
                setattr(module, name, own)


def drawing_layers(model: nn.Module) -> Iterator[str]:
    """Names and types of layers that still draw numbers from torch's generator."""
    for name, layer in model.named_modules():
        known = isinstance(layer, nn.modules.dropout._DropoutNd) and not isinstance(layer, Dropout)
        attention = isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0
        if (known and 0 < layer.p < 1) or attention or isinstance(layer, nn.RReLU):
            yield f"{type(layer).__name__} '{name}'"


def _own(layer: nn.Module) -> Dropout | None:
    """The equivalent layer. None if nothing is drawn, or if the type is unknown.

    Types are compared exactly, since a subclass may do anything. timm and torchvision are considered only if
    they have been imported, because otherwise no layer can be theirs.
    """
    kind, share = type(layer), float(getattr(layer, "p", 0.0) or 0.0)
    if kind in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
        together = None if kind is nn.Dropout else 2
        unbatched = {nn.Dropout1d: 2, nn.Dropout3d: 4}.get(kind)
        return Dropout(share, together, unbatched) if 0 < share < 1 else None
    if kind is _known("timm.layers.drop", "DropPath"):
        path: Any = layer
        share = float(path.drop_prob or 0.0)
        return Dropout(share, 1, scaled=path.scale_by_keep) if 0 < share < 1 else None
    if kind is _known("torchvision.ops.stochastic_depth", "StochasticDepth"):
        depth: Any = layer
        return Dropout(share, 1 if depth.mode == "row" else 0) if 0 < share < 1 else None
    return None


def _known(module: str, name: str) -> object:
    return getattr(sys.modules.get(module), name, "not imported")
