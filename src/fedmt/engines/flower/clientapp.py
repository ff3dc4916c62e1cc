"""The program that a center's SuperNode starts for each message: fedmt's own app, whatever was sent.

Flower's own `flwr-clientapp` installs the app that the coordinator sends, and runs it: who holds the
coordinator could run any code at every center. This one stands in its place (`node`). It unpacks and installs
nothing, and answers with the `center` that is installed here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from flwr.clientapp import ClientApp
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

from fedmt.engines.flower.center import app


def own_app(*_: Any, **__: Any) -> Callable[..., ClientApp]:
    """In place of Flower's lookup of the app that was sent."""
    return lambda *_, **__: app


def nothing(*_: Any, **__: Any) -> None:
    """In place of unpacking an app, and of installing what it asks for."""


REPLACED = {
    "install_from_fab": nothing,
    "install_app_dependencies": nothing,
    "get_load_client_app_fn": own_app,
}


def main() -> None:
    missing = [name for name in REPLACED if not hasattr(run_clientapp, name)]
    if missing:  # another version of Flower: better no answer than code from elsewhere
        sys.exit(
            f"fedmt: this version of Flower has no {', '.join(missing)}; install fedmt's own: fedmt[flower]."
        )
    for name, ours in REPLACED.items():
        setattr(run_clientapp, name, ours)
    flwr_clientapp()


if __name__ == "__main__":
    main()
