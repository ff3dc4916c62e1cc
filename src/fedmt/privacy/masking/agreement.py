"""The X25519 keys of a run: each center makes a pair, and signs the public one with its registered key.

A center trusts a peer's key if the signature matches the fingerprint of that peer in its own file. The
coordinator, which forwards the keys, therefore cannot invent a peer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

Sign = Callable[[bytes], bytes]
"""Signs with a center's registered private key."""

Verify = Callable[[str, bytes, bytes], bool]
"""Takes (name, bytes, signature) and returns whether the signature is from the center with that name."""


class Refused(Exception):
    """Why a message is not answered or does not count. It contains no data, so it may be sent back."""


@dataclass(frozen=True)
class Announcement:
    """A center's public key for a run."""

    public: bytes
    signature: bytes

    @staticmethod
    def statement(run: str, name: str, public: bytes) -> bytes:
        """The bytes that are signed."""
        return json.dumps(["fedmt masking key 1", run, name, public.hex()]).encode()

    @classmethod
    def make(cls, run: str, name: str, public: X25519PublicKey, sign: Sign) -> Announcement:
        raw = public.public_bytes_raw()
        return cls(raw, sign(cls.statement(run, name, raw)))

    def believed(self, run: str, name: str, verify: Verify) -> X25519PublicKey:
        if not verify(name, self.statement(run, name, self.public), self.signature):
            raise Refused(f"the key claimed for '{name}' was not signed by it")
        return X25519PublicKey.from_public_bytes(self.public)

    def to_json(self) -> list[str]:
        return [self.public.hex(), self.signature.hex()]

    @classmethod
    def from_json(cls, given: Any) -> Announcement:
        try:
            public, signature = (bytes.fromhex(part) for part in given)
        except (TypeError, ValueError):
            raise Refused("this is not a valid key") from None
        if len(public) != 32 or len(signature) > 1024:
            raise Refused("this is not a valid key")
        return cls(public, signature)


Announcements = Mapping[str, Announcement]
