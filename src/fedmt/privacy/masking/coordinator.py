"""The coordinator's side of one sum: it adds masked vectors, asks for seeds, and removes the masks from the
sum.

It never returns a wrong sum. If a seed is missing, the sum is lost, and the error names whose seed it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir

from fedmt.core.errors import listed
from fedmt.privacy.masking.agreement import Announcements, Refused
from fedmt.privacy.masking.center import DIGEST, SEALED, Masked, digest
from fedmt.privacy.masking.fixed_point import Layout, Mean, NotASum, Vector
from fedmt.privacy.masking.masks import SEED, Context, add_mask
from fedmt.privacy.masking.statements import MaskRequest, Revealed, RevealRequest


class Lost(Exception):
    """Why there is no sum."""


class MaskedSum:
    """participants: the key of every center that is asked, by name. problems: by name, what a center did
    wrong."""

    def __init__(self, context: Context, threshold: int, participants: Announcements, layout: Layout) -> None:
        if len(participants) < threshold:
            raise Lost(f"{len(participants)} centers are present, but the threshold is {threshold}")
        self.context, self.threshold, self.participants = (
            context,
            threshold,
            dict(sorted(participants.items())),
        )
        self.layout = layout
        self.problems: dict[str, str] = {}
        self._total = np.zeros(layout.length, layout.dtype)
        self._dealt: dict[str, bytes] = {}
        self._revealed: dict[str, Revealed] = {}

    def request(self) -> bytes:
        """The first message to every participant."""
        return MaskRequest(self.context, self.threshold, self.participants).to_bytes()

    @property
    def survived(self) -> list[str]:
        return sorted(self._dealt)

    @property
    def vanished(self) -> tuple[str, ...]:
        return tuple(name for name in self.participants if name not in self._dealt)

    def add(self, name: str, masked: Masked) -> None:
        """A center's first message. A rejected message counts as if it had not arrived."""
        vector = masked.vector
        if name not in self.participants or name in self._dealt:
            raise Refused("it sent a masked vector that was not requested")
        if vector.dtype != self.layout.dtype or vector.shape != (self.layout.length,):
            raise Refused(
                f"its masked vector is {vector.dtype} {vector.shape}, expected {self.layout.dtype} "
                f"({self.layout.length},)"
            )
        if len(masked.dealt) != DIGEST + len(self.participants) * (DIGEST + SEALED):
            raise Refused("it did not send one share for each participant")
        self._dealt[name] = bytes(masked.dealt)
        np.add(self._total, vector, out=self._total)

    def reveal_requests(self) -> dict[str, bytes]:
        """The second message, to each center whose vector arrived."""
        if len(self._dealt) < self.threshold:
            raise Lost(f"{len(self._dealt)} masked updates arrived, but the threshold is {self.threshold}")
        return {
            name: RevealRequest(
                self.context, {peer: self._share(peer, name)[1] for peer in self.survived}, self.vanished
            ).to_bytes()
            for name in self.survived
        }

    def _share(self, dealer: str, receiver: str) -> tuple[bytes, bytes]:
        """The digest of a share, and the share itself, sealed."""
        start = DIGEST + list(self.participants).index(receiver) * (DIGEST + SEALED)
        dealt = self._dealt[dealer][start : start + DIGEST + SEALED]
        return dealt[:DIGEST], dealt[DIGEST:]

    def take(self, name: str, answer: bytes) -> None:
        """A center's answer to the second message."""
        if name not in self._dealt or name in self._revealed:
            raise Refused("it revealed what was not requested")
        self._revealed[name] = Revealed.from_bytes(answer)

    def mean(self) -> Mean:
        return self.layout.decode(self.total(), len(self._dealt))

    def total(self) -> Vector:
        """The sum without its masks. The first call removes them."""
        seeds = self._self_seeds()
        pairs = self._pairwise_seeds()
        for seed in seeds.values():
            add_mask(self._total, seed, -1)
        for (survivor, vanished), seed in pairs.items():
            add_mask(self._total, seed, -1 if survivor < vanished else 1)
        try:
            self.layout.check_counts(self._total, len(self._dealt))
        except NotASum as error:
            raise Lost(f"a center revealed a wrong seed: {error}") from None
        return self._total

    def _self_seeds(self) -> dict[str, bytes]:
        seeds = {}
        for dealer in self.survived:
            shares = []
            for number, receiver in enumerate(self.participants, 1):
                share = self._revealed[receiver].shares.get(dealer) if receiver in self._revealed else None
                if share is None:
                    continue
                if digest(self.context, "share", receiver, share) == self._share(dealer, receiver)[0]:
                    shares.append((number, share))
                else:
                    self.problems[receiver] = f"it revealed a different share of '{dealer}' than it was dealt"
            if len(shares) < self.threshold:
                raise Lost(
                    f"{len(shares)} shares of the seed of '{dealer}' came back, but the threshold is "
                    f"{self.threshold}"
                )
            seed = Shamir.combine(shares[: self.threshold], ssss=False)
            if digest(self.context, "seed", dealer, seed) != self._dealt[dealer][:DIGEST]:
                raise Lost(f"the shares that '{dealer}' dealt do not fit its seed")
            seeds[dealer] = seed
        return seeds

    def _pairwise_seeds(self) -> Mapping[tuple[str, str], bytes]:
        """The seeds of each center in the sum with each center that is not. Only these two know it.

        If one vanished before it sent its vector and the other afterwards, nobody can recover their seed.
        """
        found: dict[tuple[str, str], bytes] = {}
        missing = []
        for survivor in self.survived:
            known = self._revealed[survivor].seeds if survivor in self._revealed else {}
            for vanished in self.vanished:
                if len(known.get(vanished, b"")) == SEED:
                    found[survivor, vanished] = known[vanished]
                else:
                    missing.append(f"{survivor} and {vanished}")
        if missing:
            raise Lost(f"the seed between two centers is missing, and both are gone: {listed(missing, 3)}")
        return found
