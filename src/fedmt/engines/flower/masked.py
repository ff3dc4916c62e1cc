"""A center's side of secure aggregation: whom it trusts, what it keeps, and what leaves it.

    <state>/<run>/masking.key      its X25519 key of the run
    <state>/<run>/masking.json     what it has masked and revealed, so that it does neither twice

A center whose file lists its peers sends only masked updates, whatever the coordinator asks for.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedmt.core.errors import FedmtError
from fedmt.engines.flower import wire
from fedmt.engines.flower.keys import Key, PublicKey, fingerprint, sign, verify
from fedmt.engines.flower.memory import Memory, Unable
from fedmt.engines.flower.settings import CenterSettings
from fedmt.privacy.masking.agreement import Refused
from fedmt.privacy.masking.center import Ledger, MaskingCenter
from fedmt.privacy.masking.fixed_point import Arrays, Layout
from fedmt.privacy.masking.statements import MaskRequest
from fedmt.privacy.masking.terms import least_threshold
from fedmt.runs.files import flush, write_atomically, writing

log = logging.getLogger("flwr")


class Masking:
    """The masking of one center in one run. key: its registered key; None in Flower's simulation, where all
    nodes are on one machine and trust each other."""

    def __init__(self, settings: CenterSettings, memory: Memory, run: str, key: Key | None) -> None:
        self.settings, self.memory, self.run, self.key = settings, memory, run, key
        file = settings.file
        if not settings.simulated and (key is None or not file.peers):
            raise Unable("secure aggregation needs `key` and [peers] in its center.toml")
        self._least = file.threshold or least_threshold(len({*file.peers, file.name}))

    def announcement(self, terms: Mapping[str, Any], samples: int) -> list[str]:
        """Its key for this run, signed, for the check. terms: the coordinator's terms."""
        if samples > int(terms["max_samples"]):
            raise Unable("it has more samples than the coordinator's deployment.max_samples")
        if self._least > int(terms["threshold"]):
            raise Unable(
                f"its threshold is {self._least}, but the coordinator's deployment.threshold is "
                f"{terms['threshold']}"
            )
        return self._side().announce(self._sign).to_json()

    def masked(
        self, asked: Mapping[str, Any], round: int, purpose: str, values: Arrays | None, weight: int
    ) -> bytes:
        """What leaves the center instead of these values. None for a center that has nothing to add."""
        try:
            request, layout = str(asked["request"]).encode(), Layout.from_json(asked["layout"])
            context = MaskRequest.from_bytes(request).context
            if (context.round, context.purpose) != (round, purpose):
                raise Refused("the request to mask is for a different sum than the message")
            vector, clipped = layout.encode(values, weight)
            masked = self._side().mask(request, vector)
        except Refused as error:
            raise Unable(str(error)) from None
        except (KeyError, TypeError, ValueError):
            raise Unable("the request to mask cannot be read") from None
        if clipped:
            log.warning(
                "%s entries of this center's %s were out of range and were clipped.", clipped, purpose
            )
        integers = masked.vector.view(np.int32 if layout.bits == 32 else np.int64)
        dealt = np.frombuffer(masked.dealt, np.uint8).copy()
        return wire.to_bytes({"vector": torch.from_numpy(integers), "dealt": torch.from_numpy(dealt)})

    def revealed(self, request: str) -> str:
        try:
            return self._side().reveal(request.encode()).decode()
        except Refused as error:
            raise Unable(str(error)) from None

    def _side(self) -> MaskingCenter:
        name = self.settings.file.name
        return MaskingCenter(name, self.run, self._private(), self._verify, self._ledger(), self._least)

    # -- what it keeps ----------------------------------------------------------------------------

    def _private(self) -> X25519PrivateKey:
        path = self.memory.folder / "masking.key"
        if not path.exists():
            private = X25519PrivateKey.generate()
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(path.name + ".tmp")
                temporary.unlink(missing_ok=True)
                try:
                    # Readable only by its owner, from the first byte on, and under its name when it is whole.
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                        file.write(private.private_bytes_raw())
                        flush(file)
                    temporary.replace(path)
                except OSError:
                    temporary.unlink(missing_ok=True)
                    raise
        return X25519PrivateKey.from_private_bytes(path.read_bytes())

    def _ledger(self) -> Ledger:
        path = self.memory.folder / "masking.json"

        def save(data: bytes) -> None:
            write_atomically(path, data)

        try:
            return Ledger.load(path.read_bytes(), save) if path.exists() else Ledger(save)
        except (TypeError, ValueError):
            raise FedmtError(
                f"{path}: the file is damaged. Ask the coordinator to start a new run."
            ) from None

    # -- whom it believes -------------------------------------------------------------------------

    def _sign(self, statement: bytes) -> bytes:
        if self.key is None:
            return b""
        form = serialization.PublicFormat.OpenSSH
        public = self.key.public_key().public_bytes(serialization.Encoding.OpenSSH, form).decode()
        return json.dumps({"key": public, "signature": sign(self.key, statement).hex()}).encode()

    def _verify(self, name: str, statement: bytes, signature: bytes) -> bool:
        if self.key is None:
            return True
        file = self.settings.file
        expected = fingerprint(self.key.public_key()) if name == file.name else file.peers.get(name)
        if expected is None:
            raise Refused(f"'{name}' is not among the [peers] of its center.toml")
        try:
            given = json.loads(signature)
            public = serialization.load_ssh_public_key(str(given["key"]).encode())
            raw = bytes.fromhex(given["signature"])
        except (KeyError, TypeError, ValueError, UnsupportedAlgorithm):
            return False
        return (
            isinstance(public, PublicKey)
            and fingerprint(public) == expected
            and verify(public, statement, raw)
        )
