"""A user's own network, named in the config as "package.module:callable".

The callable, a class or a function, is called with `classes` and the input's description of a sample (for
images: `channels`), and returns a module that maps samples to logits [N, classes].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedmt.backbones.base import Backbone
from fedmt.core.errors import FedmtError
from fedmt.core.registry import importable_from_here

Builder = Callable[..., nn.Module]


def not_a_builder(found: Any) -> str | None:
    """What is wrong with an object that a user named as a backbone."""
    if callable(found) or isinstance(found, Backbone):
        return None
    return (
        f"is of type {type(found).__name__}, expected a function or class that takes (classes=..., and "
        "channels=... for images) and returns the network."
    )


def custom(builder: Builder, spec: str, options: Mapping[str, Any]) -> nn.Module:
    """The network that `builder`, found at `spec` ("package.module:callable"), makes from the options."""
    where = f"model.backbone: backbone '{spec}'"
    call = f"{spec.partition(':')[2]}({', '.join(f'{k}={v}' for k, v in options.items())})"
    with importable_from_here():  # it may import only when it is called
        try:
            network = builder(**options)
        except Exception as error:
            raise FedmtError(f"{where}: calling {call} raised {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise FedmtError(
            f"{where}: {call} returned an object of type {type(network).__name__}, expected a "
            "torch.nn.Module."
        )
    return network
