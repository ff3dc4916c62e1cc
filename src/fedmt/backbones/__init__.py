"""Backbones, one network per file, and the classifier that federations train.

Parameter names are torchvision's, so its published weight files load. A `Classifier` is a backbone
with its input normalization inside: plain samples in, wanted-space logits out. Networks of timm are found by
`timm:NAME`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from torch import Tensor, nn

from fedmt.backbones import mlp, mobilenet, resnet, resnet9, small_cnn, timm
from fedmt.backbones.base import Backbone
from fedmt.backbones.custom import Builder, custom, not_a_builder
from fedmt.backbones.given import PREFIX, build_given
from fedmt.backbones.heads import last_layer
from fedmt.backbones.resnet import pools_by_default
from fedmt.backbones.weights import load_weights
from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry
from fedmt.inputs import Input

BACKBONES: Registry[Backbone | Builder] = Registry(
    "backbone",
    {
        **small_cnn.BACKBONES,
        **resnet9.BACKBONES,
        **resnet.BACKBONES,
        **mobilenet.BACKBONES,
        **mlp.BACKBONES,
    },
    not_a_builder,
    form="package.module:callable",
)
"""The known networks. A user's own is a function or class, called as described in `custom`, or a
`Backbone`."""


class Classifier(nn.Module):
    """`backbone((x - mean) / std)`: samples [B, ...], as a network sees them, to logits [B, K]."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: Tensor, std: Tensor) -> None:
        """mean, std: broadcastable to [B, ...] (`Input.statistics`)."""
        super().__init__()
        self.backbone = backbone
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, samples: Tensor) -> Tensor:
        logits: Tensor = self.backbone((samples - self.mean) / self.std)
        return logits


def build(
    name: str,
    classes: int,
    input: Input,
    weights: Path | None = None,
    max_pool: bool | None = None,
    key: str = "model.backbone",
    given: nn.Module | None = None,
    head: bool | None = None,
) -> nn.Module:
    """A backbone by name, or by a user's `package.module:callable`, from random or published weights.

    max_pool: the first max-pool of a ResNet; None skips it for small images. key: the key of the config, for
        error messages.
    given: the user's own module, if `name` says that there is one. head: whether its outputs are features.
    """
    if given is not None or name.startswith(PREFIX):
        return build_given(name, given, classes, input, head)
    known = find_backbone(name, input, key)
    network = blank(known, name, classes, input, max_pool)
    if weights is not None:
        last = known.head
        if last is None and (found := last_layer(network, classes)) is not None:
            last = found[0] or None  # a network may be a linear layer itself, which has no name
        for note in load_weights(network, weights, last):
            warnings.warn(note, stacklevel=2)
    return network


def find_backbone(name: str, input: Input, key: str = "model.backbone") -> Backbone:
    """What is known about a network. Raises an error if it does not accept this input."""
    if name.startswith(timm.PREFIX):
        known = timm.backbone(name, input, key)
    else:
        found = BACKBONES.find(name, key)
        known = found if isinstance(found, Backbone) else Backbone(found, input=input.name)
    takes = {kind.name for kind in type(input).__mro__ if issubclass(kind, Input)}  # tables are vectors, too
    if known.input not in takes | {input.seen_as}:
        what = "features of a frozen backbone" if key == "model.head" else "samples of this federation"
        raise FedmtError(
            f"{key}: '{name}' takes {known.input}, but the {what} are {input.name}; choose another backbone."
        )
    return known


def blank(known: Backbone, name: str, classes: int, input: Input, max_pool: bool | None) -> nn.Module:
    """The network at random weights. name: as in the config."""
    options: dict[str, int] = {"classes": classes, **input.network_arguments}
    if known.pools:
        options["max_pool"] = pools_by_default(input) if max_pool is None else max_pool
    ours = name in BACKBONES or name.startswith(timm.PREFIX)
    return known.build(**options) if ours else custom(known.build, name, options)


__all__ = ["BACKBONES", "Backbone", "Classifier", "blank", "build", "find_backbone"]
