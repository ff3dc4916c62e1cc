"""A frozen network: everything below the last layer of a backbone, which turns samples into features.

It keeps its starting weights, so the features of a center's samples are computed once, and a head on vectors
is trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedmt.backbones import Classifier, blank, find_backbone
from fedmt.backbones.heads import last_layer, put
from fedmt.backbones.weights import load_weights
from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.seeding import seeded
from fedmt.inputs import Input, from_json, to_json

PLACES = 1 << 19
"""Number of sample positions, such as pixels of an image, that are encoded at once; eight times as many on a
GPU. A few hundred thousand keep the processor busy and need little memory."""


@dataclass(frozen=True)
class Frozen:
    """What must be known about a frozen network in addition to its weights.

    input: the samples that it takes. backbone, max_pool: as in the config. digest: of its weights.
    """

    input: Input
    backbone: str
    max_pool: bool | None
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {
            "input": to_json(self.input),
            "backbone": self.backbone,
            "max_pool": self.max_pool,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Frozen:
        return cls(from_json(raw["input"]), raw["backbone"], raw["max_pool"], raw["digest"])

    def network(self, classes: int, weights: Mapping[str, Tensor]) -> Classifier:
        """The network with these weights. Raises an error if they do not belong to it."""
        if digest_of(weights) != self.digest:
            raise FedmtError(
                f"the weights of the frozen backbone '{self.backbone}' are missing, damaged or another's"
            )
        with seeded(0):
            network = encoder(self.backbone, classes, self.input, self.max_pool)
        try:
            network.load_state_dict(weights)
        except RuntimeError:
            raise FedmtError(
                f"the weights of the frozen backbone '{self.backbone}' do not fit it: the network has changed"
            ) from None
        return network


def encoder(
    name: str,
    classes: int,
    input: Input,
    max_pool: bool | None = None,
    weights: Path | None = None,
    normalization: tuple[Tensor, Tensor] | None = None,
) -> Classifier:
    """Samples, as a network sees them, to features: a backbone without its last layer, in evaluation mode.

    classes: the number of logits, which identifies the last layer.
    """
    known = find_backbone(name, input)
    network = blank(known, name, classes, input, max_pool)
    found = last_layer(network, classes)
    if found is None or not found[0]:
        raise FedmtError(
            f"model.freeze: found no last nn.Linear of {classes} outputs in '{name}', below which it could "
            "be frozen. Use another backbone."
        )
    put(network, found[0], nn.Identity())
    if weights is not None:
        for note in load_weights(network, weights, None, left_out=found[0]):
            warnings.warn(note, stacklevel=2)
    model = Classifier(network, *(normalization or input.identity_statistics))
    return model.eval().requires_grad_(False)


@torch.no_grad()
def encode(network: nn.Module, input: Input, samples: Tensor, device: torch.device, where: str) -> Tensor:
    """The features float32 [N, D] of stored samples [N, ...], on the CPU. `where` is part of the error
    messages.

    They are in float32 on every device, because they are computed once and every round uses them.
    """
    network.eval().to(device)
    network.to(memory_format=input.memory_format)  # type: ignore[call-overload]
    size = max(16, PLACES * (8 if device.type == "cuda" else 1) // input.extent)
    cudnn = torch.backends.cudnn
    parts = []
    with cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=False,
    ):
        for batch in samples.split(size):
            plain = input.plain(batch.to(device)).contiguous(memory_format=input.memory_format)
            try:
                found: Tensor = network(plain)
            except RuntimeError as error:
                first = (str(error).splitlines() or ["no reason given"])[0]
                raise FedmtError(
                    f"{where}: the frozen backbone cannot take {input.word}s of shape {input.shape}: {first}"
                ) from None
            if found.dim() != 2 or len(found) != len(batch):
                raise FedmtError(
                    f"{where}: the frozen backbone gives features of shape {tuple(found.shape)} for "
                    f"{len(batch)} {input.word}s, expected [N, features]."
                )
            parts.append(found.float().cpu())
    network.cpu()
    features = torch.cat(parts).contiguous()
    if not bool(features.isfinite().all()):
        raise FedmtError(
            f"{where}: the frozen backbone gives features that are NaN or infinite; check model.weights and "
            "model.normalize."
        )
    return features
