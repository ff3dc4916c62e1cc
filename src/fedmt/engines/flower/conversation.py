"""Handles Flower's conversation with its node about one message, always with fedmt's own app.

Flower's own `flwr-clientapp` installs the app that the coordinator sends, and runs it, so whoever controls
the coordinator could run any code at every center. This module replaces it. It unpacks and installs nothing,
and answers with the `center` module that is installed here. `resident` handles many such conversations one
after the other. Run as a program, this module handles one and ends.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.supercore.exit.exit_handler import add_exit_handler, trigger_exit_handlers
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

from fedmt.engines.flower.center import app


def own_app(*_: Any, **__: Any) -> Callable[..., ClientApp]:
    """Replaces Flower's lookup of the app that was sent."""
    return lambda *_, **__: app


def nothing(*_: Any, **__: Any) -> None:
    """Replaces unpacking an app and installing its dependencies."""


REPLACED: dict[str, Callable[..., Any]] = {
    "install_from_fab": nothing,
    "install_app_dependencies": nothing,
    "get_load_client_app_fn": own_app,
    # A message is announced before its node has all of it. Flower looks again after 1 s, then 2, 4 and so on.
    "pull_and_inflate_object_from_tree": partial(
        pull_and_inflate_object_from_tree, initial_backoff=0.05, backoff_cap=0.5, max_tries_per_object=None
    ),
}


def leave(code: int, *_: Any, **__: Any) -> None:
    """Replaces Flower's forced end of the process, which would come five seconds later."""
    finish()
    raise SystemExit(0 if 0 <= code < 100 else 1)  # codes below 100 are Flower's kinds of success


def finish() -> None:
    """What Flower does at the end: it tells the node that the task is over, and stops its heartbeat."""
    trigger_exit_handlers(run_before_force_exit=True)
    trigger_exit_handlers(run_before_force_exit=False)


def remember(*_: Any, exit_handlers: Sequence[Callable[[], None]], **__: Any) -> None:
    """Replaces the handling of signals, which belong to the resident."""
    for handler in exit_handlers:
        add_exit_handler(handler)


STAYING = {"flwr_exit": leave, "register_signal_handlers": remember, "start_parent_process_monitor": nothing}
"""What else is replaced in a process that outlives the conversation."""

_pull = run_clientapp.pull_task_input


def talk(arguments: Sequence[str], copy: Path) -> int:
    """One conversation in a process that keeps running. arguments: those of `flwr-clientapp`. Returns its
    status.

    copy: a file of the relay. A node hands out a message only once, so it is copied there. If this process is
    killed, the next one finds it. Nobody but this user's relay and resident can write to it.
    """

    def pull(client: Any) -> Any:
        if copy.stat().st_size:
            with copy.open("rb") as file:
                identity, found = pickle.load(file)
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = identity
            return found
        found = _pull(client)
        identity = (TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id)
        with copy.open("wb") as file:
            pickle.dump((identity, found), file, protocol=5)
        return found

    sys.argv = ["flwr-clientapp", *arguments]
    replace({**REPLACED, **STAYING, "pull_task_input": pull})
    try:
        flwr_clientapp()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # this is how Flower's heartbeat reports that the task is no longer wanted
        finish()
    return 1


def replace(replaced: Mapping[str, Callable[..., Any]]) -> None:
    missing = [name for name in replaced if not hasattr(run_clientapp, name)]
    if missing:  # this is another version of Flower, and no answer is better than code from elsewhere
        sys.exit(
            f"fedmt: this version of Flower has no {', '.join(missing)}; install the version that "
            "fedmt[flower] requires."
        )
    for name, ours in replaced.items():
        setattr(run_clientapp, name, ours)


def main() -> None:
    replace(REPLACED)
    flwr_clientapp()


if __name__ == "__main__":
    main()
