"""Random vectors from a seed, and seeds from a key that two centers share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedmt.privacy.masking.agreement import Refused
from fedmt.privacy.masking.fixed_point import Vector

SEED = 16
"""Size of a seed in bytes: a key of AES-128, which is as strong as X25519."""

BLOCK = 2**20
"""Bytes of keystream at a time. They stay in the processor's cache until they are added."""


@dataclass(frozen=True)
class Context:
    """Which sum a message belongs to. Every seed, key and digest depends on all of it.

    purpose: what is summed in that round ('update', 'statistics'). session: a random name that the
    coordinator makes whenever it begins a sum, so that a repeated round never uses a mask twice.
    """

    run: str
    round: int
    purpose: str
    session: str

    def label(self, what: str, *names: str) -> bytes:
        """Bytes that are different for any two contexts, uses or names."""
        return json.dumps(
            ["fedmt masking 1", what, self.run, self.round, self.purpose, self.session, *names]
        ).encode()


def derive(private: X25519PrivateKey, public: X25519PublicKey, label: bytes) -> bytes:
    """A seed that the holders of either private key can compute, and nobody else."""
    try:
        shared = private.exchange(public)
    except ValueError:  # a point of small order, for which everybody would know the result
        raise Refused("a participant's key is weak") from None
    return HKDF(SHA256(), SEED, None, label).derive(shared)


def add_mask(vector: Vector, seed: bytes, sign: Literal[1, -1] = 1) -> None:
    """Adds the keystream of AES-CTR under a seed to a vector in place, modulo 2^32 or 2^64."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    words = min(BLOCK // vector.itemsize, len(vector))
    zeros = bytes(words * vector.itemsize)
    keystream = bytearray(len(zeros) + 16)
    combine = np.add if sign == 1 else np.subtract
    for start in range(0, len(vector), words):
        part = vector[start : start + words]
        stream.update_into(memoryview(zeros)[: part.nbytes], keystream)
        combine(part, np.frombuffer(keystream, vector.dtype, len(part)), out=part)
