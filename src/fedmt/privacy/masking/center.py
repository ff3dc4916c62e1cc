"""A center's side of a sum: it masks its vector once, and reveals once what removes the masks from the sum.

What it reveals for a peer is *either* a share of the peer's self seed *or* the seed that it shares with it,
never both. With both, the coordinator could remove all masks from that peer's vector.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedmt.privacy.masking.agreement import Announcement, Refused, Sign, Verify
from fedmt.privacy.masking.fixed_point import Vector
from fedmt.privacy.masking.masks import SEED, Context, add_mask, derive
from fedmt.privacy.masking.statements import MaskRequest, Revealed, RevealRequest
from fedmt.privacy.masking.terms import least_threshold

DIGEST = 16
SEALED = SEED + 16
"""Size of an encrypted share in bytes: the share and the tag of AES-GCM."""


@dataclass(frozen=True)
class Masked:
    """A center's first message.

    dealt: a digest of its self seed; then for each participant, in the order of the names, a digest of the
    participant's share of the seed, and the share itself, encrypted for the participant.
    """

    dealt: bytes
    vector: Vector


def digest(context: Context, what: str, name: str, value: bytes) -> bytes:
    """Commits a center to a seed or share without revealing it."""
    return hashlib.sha256(context.label(f"digest of {what}", name) + value).digest()[:DIGEST]


@dataclass
class Ledger:
    """What a center must remember between messages of one run. `save` is called before an answer is sent.

    opened: by session, the request of each sum that it masked for and has not revealed for. used: by round
    and purpose, all sessions it masked for. revealed: by round and purpose, who was in the sum it revealed.
    """

    save: Callable[[bytes], None]
    opened: dict[str, str] = field(default_factory=dict)
    used: dict[str, list[str]] = field(default_factory=dict)
    revealed: dict[str, list[str]] = field(default_factory=dict)

    def keep(self) -> None:
        fields = {"opened": self.opened, "used": self.used, "revealed": self.revealed}
        self.save(json.dumps(fields).encode())

    @classmethod
    def load(cls, data: bytes, save: Callable[[bytes], None]) -> Ledger:
        return cls(save, **json.loads(data))


class MaskingCenter:
    """name: the name of this center. run: the run that its key is for. verify: returns whether a peer signed
        something.
    least: the smallest number of centers in a sum that this center accepts, whatever the coordinator says.
    """

    def __init__(
        self, name: str, run: str, private: X25519PrivateKey, verify: Verify, ledger: Ledger, least: int
    ) -> None:
        self.name, self.run, self.least = name, run, least
        self._private, self._verify, self._ledger = private, verify, ledger

    def announce(self, sign: Sign) -> Announcement:
        return Announcement.make(self.run, self.name, self._private.public_key(), sign)

    # -- the first message ------------------------------------------------------------------------

    def mask(self, request: bytes, vector: Vector) -> Masked:
        """Masks a vector in place."""
        asked = MaskRequest.from_bytes(request)
        context, keys = asked.context, self._believed(asked)
        place, ledger = _place(context), self._ledger
        if context.session in ledger.used.get(place, []):
            raise Refused(f"it has already masked an update for this session of round {context.round}")
        seed = secrets.token_bytes(SEED)
        dealt = self._deal(asked, keys, seed)
        add_mask(vector, seed)
        for peer, key in keys.items():
            if peer != self.name:
                add_mask(vector, self._pairwise(asked, peer, key), 1 if self.name < peer else -1)
        ledger.used.setdefault(place, []).append(context.session)
        # An older open sum of the same kind is abandoned, because a late answer to it is of no use.
        ledger.opened = {s: r for s, r in ledger.opened.items() if _purpose(r) != context.purpose}
        ledger.opened[context.session] = asked.to_bytes().decode()
        ledger.keep()
        return Masked(dealt, vector)

    def _believed(self, asked: MaskRequest) -> dict[str, X25519PublicKey]:
        """The participants' keys, in the order of the names."""
        context, participants, threshold = asked.context, asked.participants, asked.threshold
        if context.run != self.run:
            raise Refused("its key is for another run")
        mine = participants.get(self.name)
        if mine is None or mine.public != self._private.public_key().public_bytes_raw():
            raise Refused("the coordinator has a different key for this center, or none")
        if threshold < self.least:
            raise Refused(
                f"a sum of {threshold} centers would be revealed, but it requires {self.least} or more"
            )
        if not least_threshold(len(participants)) <= threshold <= len(participants):
            raise Refused(f"a threshold of {threshold} does not protect one of {len(participants)} centers")
        return {n: a.believed(self.run, n, self._verify) for n, a in sorted(participants.items())}

    def _pairwise(self, asked: MaskRequest, peer: str, key: X25519PublicKey) -> bytes:
        names = sorted((self.name, peer))
        return derive(self._private, key, asked.context.label("pairwise seed", *names, asked.digest()))

    def _deal(self, asked: MaskRequest, keys: dict[str, X25519PublicKey], seed: bytes) -> bytes:
        # pycryptodome's scheme is over GF(2^128), so a share is as long as a seed. Flower's own functions
        # wrap it and pad to two blocks, and Flower is not imported here.
        shares = Shamir.split(asked.threshold, len(keys), seed, ssss=False)
        dealt = digest(asked.context, "seed", self.name, seed)
        for (peer, key), (_, share) in zip(keys.items(), shares, strict=True):
            cipher, agreed = self._sealing(asked, self.name, peer, key)
            dealt += digest(asked.context, "share", peer, share)
            dealt += cipher.encrypt(bytes(12), share, agreed)  # each key encrypts one share, so no nonce
        return dealt

    def _sealing(
        self, asked: MaskRequest, sender: str, receiver: str, key: X25519PublicKey
    ) -> tuple[AESGCM, bytes]:
        """The cipher from one center to another. It depends on what both must have been told."""
        cipher = AESGCM(derive(self._private, key, asked.context.label("share", sender, receiver)))
        return cipher, asked.digest().encode()

    # -- the second message -----------------------------------------------------------------------

    def reveal(self, request: bytes) -> bytes:
        asked = RevealRequest.from_bytes(request)
        context, ledger = asked.context, self._ledger
        if context.session not in ledger.opened:
            raise Refused("it masked nothing for this session, or has already revealed its seeds")
        masked = MaskRequest.from_bytes(ledger.opened[context.session].encode())
        if context != masked.context:
            raise Refused("the request to reveal is for a different sum than the one it masked for")
        self._agrees(asked, masked)
        shares, seeds = {}, {}
        for peer, announcement in sorted(masked.participants.items()):
            key = X25519PublicKey.from_public_bytes(announcement.public)
            if peer in asked.vanished:
                seeds[peer] = self._pairwise(masked, peer, key)
                continue
            cipher, agreed = self._sealing(masked, peer, self.name, key)
            # A share that cannot be opened is left out: that peer was told something else, or cheats.
            with suppress(InvalidTag):
                shares[peer] = cipher.decrypt(bytes(12), asked.survived[peer], agreed)
        del ledger.opened[context.session]
        ledger.revealed[_place(context)] = sorted(asked.survived)
        ledger.keep()
        return Revealed(shares, seeds).to_bytes()

    def _agrees(self, asked: RevealRequest, masked: MaskRequest) -> None:
        survived, vanished, everyone = set(asked.survived), set(asked.vanished), set(masked.participants)
        if both := survived & vanished:
            raise Refused(f"both seeds of '{min(both)}' were requested, which would reveal its update")
        if survived | vanished != everyone:
            raise Refused("the survived and vanished centers are not those it masked with")
        if self.name not in survived:
            raise Refused("the coordinator claims that its own vector did not arrive")
        if len(survived) < masked.threshold:
            raise Refused(f"{len(survived)} centers survived, but the threshold is {masked.threshold}")
        before: Collection[str] | None = self._ledger.revealed.get(_place(asked.context))
        if before is not None and survived != set(before):
            raise Refused(
                f"it has already revealed a sum of round {asked.context.round}; the difference from a sum of "
                "other centers would reveal their updates"
            )


def _place(context: Context) -> str:
    return f"{context.purpose} {context.round}"


def _purpose(request: str) -> Any:
    return json.loads(request)["context"]["purpose"]
