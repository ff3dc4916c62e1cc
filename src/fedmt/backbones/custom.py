"""A user's own network, named in the config as "package.module:callable".

The callable, a class or a function, is called with `classes` and `channels` and returns a module
that maps images [N, channels, H, W] to logits [N, classes].
"""

from __future__ import annotations

from torch import nn

from fedmt.errors import FedmtError
from fedmt.registry import import_named, importable_from_here


def custom(spec: str, classes: int, channels: int) -> nn.Module:
    """The network that `spec` ("package.module:callable") builds; modules beside the user count too."""
    where = f"Backbone '{spec}'"
    build = import_named(spec, where, "package.module:callable")
    attribute = spec.partition(":")[2]
    if not callable(build):
        raise FedmtError(
            f"{where}: '{attribute}' is of type {type(build).__name__}, expected a function or class "
            "that takes (classes=..., channels=...) and gives the network."
        )
    with importable_from_here():
        try:
            network = build(classes=classes, channels=channels)
        except Exception as error:
            raise FedmtError(
                f"{where}: calling {attribute}(classes={classes}, channels={channels}) raised "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(network, nn.Module):
        raise FedmtError(
            f"{where}: {attribute}(classes={classes}, channels={channels}) gave an object of type "
            f"{type(network).__name__}, expected a torch.nn.Module."
        )
    return network
