"""Records what the coordinator and a center exchange in the audit log of each: who, what and how much, but no
values.

<run folder>/audit.jsonl     the coordinator's
<state>/audit.jsonl          a center's
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import flwr
import torch
from flwr.app import RecordDict

import fedmt
from fedmt.core.errors import FedmtError
from fedmt.engines.flower import wire
from fedmt.runs.audit import Audit

FILE = "audit.jsonl"


class Trail:
    """folder: where the log is. None keeps no log."""

    def __init__(self, folder: Path | None) -> None:
        self._audit = None if folder is None else Audit(folder / FILE)

    def write(self, event: str, **about: Any) -> None:
        if self._audit is not None:
            self._audit.write(event, **{key: value for key, value in about.items() if value is not None})

    def asked(
        self, kind: str, round: int, center: str | None, node: int, message: str | None, content: RecordDict
    ) -> None:
        """The coordinator asks. message: its id; None if it could not be sent."""
        if self._audit is not None:
            event = "asked" if message is not None else "could not ask"
            about = {"center": center, "node": node, "message": message}
            self.write(event, kind=kind, round=round, **about, parts=described(content))

    def received(
        self, kind: str, round: int, center: str, node: int, message: str, content: RecordDict
    ) -> None:
        """The coordinator has an answer that belongs to this round and, if signatures are required, is
        signed."""
        if self._audit is not None:
            about = {"center": center, "node": node, "message": message, "signed": wire.SIGNATURE in content}
            self.write("received", kind=kind, round=round, **about, parts=described(content))


def versions() -> dict[str, str]:
    return {
        "fedmt": fedmt.__version__,
        "flwr": flwr.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def described(content: RecordDict) -> dict[str, dict[str, Any]]:
    """The parts of a message: bytes and digests, the names of facts, and the names, types and shapes of
    tensors."""
    try:
        parts = wire.parts_of(content)
    except FedmtError as error:
        return {"unreadable": {"why": str(error)}}
    digests = wire.digests_of(parts)
    return {
        name: {"bytes": len(data), "sha256": digests[name], **_inside(name, data)}
        for name, data in parts.items()
    }


def _inside(name: str, data: bytes) -> dict[str, Any]:
    """safetensors: eight bytes for the length of a JSON header, then the header."""
    try:
        if name == wire.FACTS:
            return {"names": sorted(json.loads(data))}
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        return {
            "tensors": {k: f"{v['dtype']} {v['shape']}" for k, v in header.items() if k != "__metadata__"}
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {"names": "unreadable"}
