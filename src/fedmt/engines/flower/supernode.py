"""Flower's SuperNode in a process that ends when its connection to the coordinator does.

    python -m fedmt.engines.flower.supernode …     started by `node`, with the options of `flower-supernode`

Flower 1.41 retries most connections, but gives up after some failures: a TLS handshake that takes too long,
or a request that a proxy refuses. The node then asks for no more messages, but its process stays, because a
thread of it serves the programs that answer messages. No supervisor would start it again, and its center
would be missing for good.
"""

from __future__ import annotations

import os
import sys

from flwr.supernode.cli.flower_supernode import flower_supernode


def main() -> None:
    sys.argv[0] = "flower-supernode"
    try:
        flower_supernode()  # if it is told to end, it raises SystemExit
    except Exception as error:
        print(f"fedmt: Flower's node failed ({type(error).__name__}: {error}).", file=sys.stderr)
    print(
        "fedmt: The node gave up its connection to the coordinator, for the reason above. It ends with "
        "status 1, so that a supervisor starts it again.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)  # without waiting for that thread; what the node started ends with it


if __name__ == "__main__":
    main()
