"""Starts a center's SuperNode so that it runs only fedmt, unless this machine's clock is wrong.

    python -m fedmt.engines.flower.node --superlink coordinator.example.org:8443 --root-certificates ca.crt …

All options are those of `flower-supernode`, which takes this process's place. A node signs the time with each
of its requests, and the SuperLink rejects it if its clock is off. The node then ends with "terminated
gracefully" and no reason. So this program first asks the coordinator for the time, as any browser could.

A SuperNode starts a program for every task that the coordinator gives it: `flwr-clientapp`, or others for
agents, models and connectors. All of them run what the coordinator sends. Programs of the same names, put
first on its path, answer with fedmt's own app (`clientapp`), and reject the rest. They read the path of the
center's file from the environment, so that nodes with the same home folder do not mix up their centers.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shlex
import ssl
import sys
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedmt.core.errors import FedmtError
from fedmt.engines.flower import clientapp
from fedmt.engines.flower.clientapp import CENTER

AHEAD, BEHIND = 5, 305
"""Seconds that Flower 1.41 tolerates (SYSTEM_TIME_TOLERANCE, and TIMESTAMP_TOLERANCE in addition)."""


OWN = "flwr-clientapp"
PROGRAMS = (OWN, "flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
"""Every task that Flower 1.41 knows (TASK_TYPE_TO_COMMAND)."""


NOT_YET_VALID, EXPIRED = 9, 10
"""OpenSSL's codes for a certificate whose dates do not fit this machine's clock
(X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED)."""


def skew(
    address: str, certificates: Path | None, insecure: bool, verified: bool = True, patience: float = 10.0
) -> tuple[float, float]:
    """Seconds by which this machine's clock is ahead of the coordinator's: the minimum and the maximum.

    address: HOST:PORT of the SuperLink or of the proxy in front of it. certificates: those of its authority;
    None for those that the system trusts. insecure: connect in plain text. verified: whether the
    coordinator's certificate must be valid.
    """
    host, _, port = address.rpartition(":")
    if insecure:
        connection = http.client.HTTPConnection(host, int(port), timeout=patience)
    else:
        trusted = ssl.create_default_context(cafile=None if certificates is None else str(certificates))
        if not verified:
            trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, int(port), timeout=patience, context=trusted)
    try:
        asked = time.time()
        connection.request("HEAD", "/v1/fleet/")
        said = connection.getresponse().headers.get("Date")
        answered = time.time()
    finally:
        connection.close()
    if said is None:
        raise ValueError("there is no Date in the answer")
    date = parsedate_to_datetime(said).timestamp()
    return asked - (date + 2), answered - date  # a Date has whole seconds, and may be one old


def check_clock(address: str, certificates: Path | None, insecure: bool = False) -> None:
    """Rejects a clock that the SuperLink would reject. Flower itself reports other problems."""
    try:
        try:
            least, most = skew(address, certificates, insecure)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in (NOT_YET_VALID, EXPIRED):
                raise
            # Is the certificate wrong, or this clock? Only the time is requested, and nothing is sent.
            least, most = skew(address, certificates, insecure, verified=False)
    except (OSError, ValueError, http.client.HTTPException):
        return
    if least < AHEAD and most > -BEHIND:
        return
    way = "ahead of" if least > 0 else "behind"
    raise FedmtError(
        f"This machine's clock is about {abs(least + most) / 2:.0f} s {way} the coordinator's, {address}. "
        f"Flower rejects a node whose clock is more than {AHEAD} s ahead or {BEHIND} s behind, without "
        "saying why. Synchronize both machines by NTP (timedatectl set-ntp true), then start the node "
        "again."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--superlink", default="127.0.0.1:8000")
    parser.add_argument("--root-certificates", type=Path)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--node-config", default="")
    known, _ = parser.parse_known_args(given)
    try:
        check_clock(known.superlink, known.root_certificates, known.insecure)
    except FedmtError as error:
        print(f"fedmt: {error}", file=sys.stderr)
        sys.exit(2)
    programs = write_programs(Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "fedmt-programs")
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.pop(CENTER, None)
    if found := re.search(r"""(?:^|\s)center\s*=\s*(?:"([^"]+)"|'([^']+)')""", known.node_config):
        os.environ[CENTER] = found[1] or found[2]
    # The environment may be used without having been activated.
    os.environ["PATH"] += f"{os.pathsep}{Path(sys.executable).parent}"
    try:
        os.execvp("flower-supernode", ["flower-supernode", *given])
    except OSError as error:
        said = f"flower-supernode cannot be started ({error.strerror}). Install the extra"
        print(f"fedmt: {said}: pip install 'fedmt[flower]'.", file=sys.stderr)
        sys.exit(2)


def write_programs(folder: Path) -> Path:
    """The programs that a SuperNode starts, by the names that Flower gives them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    own = f'exec {shlex.join([sys.executable, "-IS", clientapp.__file__])} "$@"'
    refusal = "echo 'fedmt: the coordinator requested a task that is not fedmt; it was rejected.' >&2; exit 1"
    for name in PROGRAMS:
        part = folder / f"{name}.{os.getpid()}"
        part.write_text(f"#!/bin/sh\n{own if name == OWN else refusal}\n")
        part.chmod(0o700)
        part.replace(folder / name)  # replaced whole, even if several start at the same time
    return folder


if __name__ == "__main__":
    main()
