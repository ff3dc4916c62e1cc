"""What the coordinator tells the centers of a run: how to train, in which spaces, with which network.

It is sent with every message, because a center's process may be started again for each one. It takes a few
kilobytes. It contains nothing of the coordinator's data or of another center.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

import fedmt
from fedmt.backbones import Classifier
from fedmt.backbones.frozen import Frozen
from fedmt.config import Config, build_network, config_class, resolved
from fedmt.config.traveling import for_centers
from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.core.registry import NotAllowed
from fedmt.data.center import Federation
from fedmt.inputs import Input, from_json, to_json


@dataclass(frozen=True)
class Plan:
    """spaces: the federation's label spaces, the wanted one first. input: what is trained on (samples or
    features).

    frozen: the network with which a center computes features. Its weights are sent once, with the check.
    """

    config: Config
    spaces: tuple[LabelSpace, ...]
    input: Input
    version: str = fedmt.__version__
    frozen: Frozen | None = None

    @classmethod
    def of(cls, config: Config, federation: Federation) -> Plan:
        frozen, encoded = None, federation.encoded
        if encoded is not None:
            digest = digest_of(encoded.network.state_dict())
            frozen = Frozen(encoded.samples.input, config.model.backbone, config.model.max_pool, digest)
        return cls(config, federation.spaces, federation.input, frozen=frozen)

    @property
    def read(self) -> Input:
        """What a center reads from its files."""
        return self.input if self.frozen is None else self.frozen.input

    @property
    def wanted(self) -> LabelSpace:
        return self.spaces[0]

    def network(self) -> Classifier:
        """The network with arbitrary weights, because a center receives the real ones."""
        return build_network(self.config, self.input, [len(space) for space in self.spaces])

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "config": for_centers(type(self.config), resolved(self.config)),
            "spaces": [[space.name, list(space)] for space in self.spaces],
            "input": to_json(self.input),
            **({} if self.frozen is None else {"frozen": self.frozen.to_json()}),
        }

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> Plan:
        try:
            spaces = tuple(LabelSpace(name, classes) for name, classes in plan["spaces"])
            input = from_json(plan["input"])
            frozen = Frozen.from_json(plan["frozen"]) if "frozen" in plan else None
            config = config_class(plan["config"]).model_validate(plan["config"])
        except NotAllowed:
            raise
        except (KeyError, TypeError, ValueError, ValidationError, FedmtError) as error:
            raise FedmtError(f"The coordinator's plan cannot be read ({error}).") from None
        return cls(config, spaces, input, str(plan["version"]), frozen)


def shape_digest(model: nn.Module) -> str:
    """A digest of the names, shapes and types of a network's weights. Equal if the weights of one fit the
    other."""
    return weights_digest(model.state_dict())


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    lines = sorted(f"{k} {tuple(v.shape)} {v.dtype}" for k, v in weights.items())
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
