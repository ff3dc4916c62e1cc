"""A federation through its frozen backbone: every sample becomes the vector of its features."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedmt.backbones import Classifier
from fedmt.backbones.frozen import encode, encoder
from fedmt.config.building import normalization_of
from fedmt.config.schema import Config
from fedmt.data.center import Center, Encoded, Federation
from fedmt.inputs import Input, Vectors


def freeze(
    config: Config, federation: Federation, device: torch.device, reference_only: bool = False
) -> Federation:
    """The federation of the features, if the config freezes the backbone; else the federation as it is.

    reference_only: leaves the other centers and the tests out, to see quickly what becomes of a config.
    """
    if config.model.freeze is None or federation.encoded is not None:
        return federation
    network = frozen_network(config, federation)
    known: dict[int, Tensor] = {}  # tests in several spaces share their samples

    def through(center: Center) -> Center:
        key = id(center.values)
        if key not in known:
            known[key] = encode(network, federation.input, center.values, device, f"Center '{center.name}'")
        return features_of(center, known[key])

    held = federation.held_out
    centers = () if reference_only else federation.centers
    return replace(
        federation,
        reference=through(federation.reference),
        centers=tuple(map(through, centers)),
        tests=() if reference_only else tuple(map(through, federation.tests)),
        held_out=None if held is None else through(held),
        elsewhere=(*federation.elsewhere, *(federation.centers if reference_only else ())),
        encoded=Encoded(federation, network),
    )


def frozen_network(config: Config, federation: Federation) -> Classifier:
    """The backbone below its last layer, at its starting weights, which follow from the seed or the file."""
    spec = config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return encoder(
            spec.backbone,
            len(federation.wanted),
            federation.input,
            spec.max_pool,
            spec.weights,
            normalization_of(config, federation),
        )


def features_of(center: Center, features: Tensor, input: Input | None = None) -> Center:
    """A center with features [N, D] in place of its samples. input: what the federation says of them."""
    return replace(center, values=features, input=input or Vectors((features.shape[1],)))
