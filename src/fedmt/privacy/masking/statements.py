"""What the coordinator asks of a center, as bytes: to mask a vector, and to reveal seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedmt.privacy.masking.agreement import Announcement, Announcements, Refused
from fedmt.privacy.masking.masks import Context


@dataclass(frozen=True)
class MaskRequest:
    """participants: every center whose masks should cancel, by name, with the key of each."""

    context: Context
    threshold: int
    participants: Announcements

    def to_bytes(self) -> bytes:
        keys = {name: a.to_json() for name, a in sorted(self.participants.items())}
        return _bytes({"context": asdict(self.context), "threshold": self.threshold, "participants": keys})

    def digest(self) -> str:
        """All seeds of a sum depend on it, so centers that were told different things share no seeds."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> MaskRequest:
        given = _read(data)
        threshold, keys = given.get("threshold"), given.get("participants")
        if not isinstance(threshold, int) or not isinstance(keys, dict):
            raise Refused("a request to mask that cannot be read")
        participants = {name: Announcement.from_json(key) for name, key in keys.items()}
        return cls(_context(given), threshold, participants)


@dataclass(frozen=True)
class RevealRequest:
    """survived: whose masked vector arrived, with the share of its self seed that it sealed for the receiver.
    vanished: the other participants."""

    context: Context
    survived: Mapping[str, bytes]
    vanished: tuple[str, ...]

    def to_bytes(self) -> bytes:
        survived = {name: sealed.hex() for name, sealed in sorted(self.survived.items())}
        return _bytes(
            {"context": asdict(self.context), "survived": survived, "vanished": sorted(self.vanished)}
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RevealRequest:
        given = _read(data)
        try:
            survived = {str(name): bytes.fromhex(sealed) for name, sealed in given["survived"].items()}
            vanished = tuple(str(name) for name in given["vanished"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Refused("a request to reveal that cannot be read") from None
        return cls(_context(given), survived, vanished)


@dataclass(frozen=True)
class Revealed:
    """A center's second message. shares: the shares of the self seeds of the surviving centers, without those
    that could not be opened. seeds: those that it shares with the vanished centers."""

    shares: Mapping[str, bytes]
    seeds: Mapping[str, bytes]

    def to_bytes(self) -> bytes:
        return _bytes({k: {n: v.hex() for n, v in getattr(self, k).items()} for k in ("shares", "seeds")})

    @classmethod
    def from_bytes(cls, data: bytes) -> Revealed:
        given = _read(data)
        try:
            shares, seeds = (
                {str(n): bytes.fromhex(v) for n, v in given[k].items()} for k in ("shares", "seeds")
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Refused("what it revealed cannot be read") from None
        return cls(shares, seeds)


def _bytes(given: Mapping[str, Any]) -> bytes:
    return json.dumps(given, separators=(",", ":")).encode()


def _read(data: bytes) -> dict[str, Any]:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("a message that cannot be read") from None
    if not isinstance(given, dict):
        raise Refused("a message that cannot be read")
    return given


def _context(given: Mapping[str, Any]) -> Context:
    fields = given.get("context")
    types = {"run": str, "round": int, "purpose": str, "session": str}
    if not isinstance(fields, dict) or {k: type(v) for k, v in fields.items()} != types:
        raise Refused("a message that does not say which sum it belongs to")
    return Context(**fields)
