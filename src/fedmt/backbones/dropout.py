"""Dropout that the fast engine accepts: its masks follow from a seed and a count of steps.

torch's own dropout draws from a generator whose state a replayed graph does not see. Here the state is a
number in the module, which the engine sets before a center's first step and every step counts up. Step by
step and replayed, and on every device, the masks are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmt.inputs.vectors.views import mixed


class Dropout(nn.Module):
    """Features [B, D] to the same with a share of them 0 and the others scaled up; in training only."""

    count: Tensor

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return features
        place = torch.arange(features.numel(), device=features.device).view_as(features)
        bits = mixed((mixed(self.count) + place) & 0xFFFFFFFF)
        self.count.add_(1).bitwise_and_(0xFFFFFFFF)
        return torch.where(bits < self.share * 2**32, 0.0, features / (1 - self.share))


def reseed(model: nn.Module, seed: int) -> None:
    """Begins anew at the masks that follow from `seed`; each layer has its own."""
    for number, layer in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        layer.count.fill_((seed + number * 0x9E3779B9) & 0xFFFFFFFF)
