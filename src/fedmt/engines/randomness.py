"""Random numbers depend only on the seed, the round and a name, never on the order of events."""

from __future__ import annotations

import hashlib

import numpy as np

from fedmt.methods.training import Training


def random_numbers(seed: int, round: int, name: str) -> np.random.Generator:
    """A center's generator in a round. The inputs are hashed, so that no two (seed, round, name) share a
    stream."""
    digest = hashlib.blake2b(f"{seed}\0{round}\0{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def absent_centers(names: list[str], training: Training, seed: int, round: int) -> dict[str, str]:
    """The centers that do not take part in a round, and why: not chosen, or chosen and dropped out.

    At least one is chosen, but all chosen centers may drop out.
    """
    rng = random_numbers(seed, round, "who takes part")
    ordered = sorted(names)
    count = max(1, round_half_up(training.participation * len(ordered))) if ordered else 0
    chosen = {ordered[i] for i in rng.permutation(len(ordered))[:count]}
    dropped = rng.random(len(ordered)) < training.dropouts
    absent = {}
    for name, fails in zip(ordered, dropped, strict=True):
        if name not in chosen:
            absent[name] = "not chosen"
        elif fails:
            absent[name] = "dropped out"
    return absent


def round_half_up(value: float) -> int:
    return int(value + 0.5)
