"""A user's own network, named in the config as "package.module:callable".

The callable, a class or a function, is called with `classes` and `channels` and returns a module
that maps images [N, channels, H, W] to logits [N, classes].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path

from torch import nn

from fedmt.errors import FedmtError, nearest


def custom(spec: str, classes: int, channels: int) -> nn.Module:
    """The network that `spec` ("package.module:callable") builds; modules beside the user count too."""
    where = f"Backbone '{spec}'"
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in module_name.split(".")):
        raise FedmtError(f"{where}: expected 'package.module:callable', for example 'networks:my_cnn'.")
    with _working_directory_importable():
        try:
            module = import_module(module_name)
        except Exception as error:
            # A missing import *inside* the user's module is another mistake than a missing module.
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
                raise FedmtError(
                    f"{where}: no module '{missing}', neither installed nor in {Path.cwd()}; "
                    "check its name, or run from the folder that holds it."
                ) from None
            raise FedmtError(
                f"{where}: importing '{module_name}' raised {type(error).__name__}: {error}"
            ) from error
        if not hasattr(module, attribute):
            file = getattr(module, "__file__", None) or module_name
            raise FedmtError(
                f"{where}: '{module_name}' ({file}) has no '{attribute}'.{nearest(attribute, vars(module))}"
            )
        build = getattr(module, attribute)
        if not callable(build):
            raise FedmtError(
                f"{where}: '{attribute}' is of type {type(build).__name__}, expected a function or class "
                "that takes (classes=..., channels=...) and gives the network."
            )
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


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    """Puts the working directory first on the import path, as `python -m` does; a console script does not."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    invalidate_caches()  # The module may be younger than the interpreter's listing of its folder.
    try:
        yield
    finally:
        sys.path.remove(here)
