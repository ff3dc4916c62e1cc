"""Starts a center's SuperNode, unless this machine's clock is wrong.

    python -m fedmt.engines.flower.node --superlink coordinator.example.org:8443 --root-certificates ca.crt …

All options are those of `flower-supernode`, which takes this process's place. A node signs the time with each
of its requests, and the SuperLink refuses it when its clock is off; the node then ends with "terminated
gracefully" and no reason. So this asks the coordinator for the time first, as any browser would see it.
"""

from __future__ import annotations

import argparse
import http.client
import os
import ssl
import sys
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedmt.core.errors import FedmtError

AHEAD, BEHIND = 5, 305
"""Seconds that Flower 1.41 tolerates (SYSTEM_TIME_TOLERANCE, and TIMESTAMP_TOLERANCE in addition)."""


def skew(address: str, certificates: Path | None, insecure: bool, patience: float = 10.0) -> float:
    """Seconds that this machine's clock is ahead of the coordinator's, to about one.

    address: HOST:PORT of the SuperLink or of the proxy in front of it. certificates: of its authority; None
    for those that the system trusts. insecure: in plain text.
    """
    host, _, port = address.rpartition(":")
    if insecure:
        connection = http.client.HTTPConnection(host, int(port), timeout=patience)
    else:
        trusted = ssl.create_default_context(cafile=None if certificates is None else str(certificates))
        connection = http.client.HTTPSConnection(host, int(port), timeout=patience, context=trusted)
    try:
        connection.request("HEAD", "/v1/fleet/")
        said = connection.getresponse().headers.get("Date")
    finally:
        connection.close()
    if said is None:
        raise ValueError("no Date in the answer")
    return time.time() - parsedate_to_datetime(said).timestamp()


def check_clock(address: str, certificates: Path | None, insecure: bool = False) -> None:
    """Refuses a clock that the SuperLink would refuse. What else may be wrong, Flower says itself."""
    try:
        seconds = skew(address, certificates, insecure)
    except (OSError, ValueError, http.client.HTTPException):
        return
    # The Date has whole seconds.
    if -BEHIND < seconds < AHEAD + 1:
        return
    way = "ahead of" if seconds > 0 else "behind"
    raise FedmtError(
        f"This machine's clock is {abs(seconds):.0f} s {way} the coordinator's, {address}. Flower refuses a "
        f"node whose clock is more than {AHEAD} s ahead or {BEHIND} s behind, without saying why. Let both "
        "machines keep their time by NTP (timedatectl set-ntp true), and start the node again."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--superlink", default="127.0.0.1:8000")
    parser.add_argument("--root-certificates", type=Path)
    parser.add_argument("--insecure", action="store_true")
    known, _ = parser.parse_known_args(given)
    try:
        check_clock(known.superlink, known.root_certificates, known.insecure)
    except FedmtError as error:
        print(f"fedmt: {error}", file=sys.stderr)
        sys.exit(2)
    os.execvp("flower-supernode", ["flower-supernode", *given])


if __name__ == "__main__":
    main()
