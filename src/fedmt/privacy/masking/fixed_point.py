"""Encodes an update as fixed-point integers, so that a sum of them is exact and does not depend on the order.

A vector is the concatenation of all tensors that any center may send, followed by a few counts:

    w * x                        of every tensor, in fixed point; 0 if the center does not send it
    1, then clipped              that the center is in the sum, and how many of its entries were clipped
    1 or 0, then w or 0          for each group of tensors, whether the center sends it, and its weight

The sum therefore contains everything that a weighted mean over the senders of a tensor needs, and nothing
about a single center.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmt.core.errors import FedmtError, listed

Vector = NDArray[Any]
"""Unsigned integers of 32 or 64 bits. Sums wrap around, as masks require."""

Arrays = dict[str, NDArray[Any]]


class NotASum(Exception):
    """A vector that cannot be the sum of what centers encoded, because masks are left in it."""


@dataclass(frozen=True)
class Entry:
    """A tensor's position in the vector.

    exponent: entries are clipped to the range from -2^exponent to 2^exponent. group: centers send all tensors
    of a group or none of them. equal: centers count equally, whatever their weight.
    """

    name: str
    shape: tuple[int, ...]
    exponent: int
    group: int = 0
    equal: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Mean:
    """A decoded sum. means: by name, over the centers that sent it. counts: by name, their number.

    totals: by name, the sum of their weights. clipped: the number of clipped entries over all centers.
    """

    means: Arrays
    counts: dict[str, int]
    totals: dict[str, int]
    clipped: int


@dataclass(frozen=True)
class Layout:
    """centers: the largest number of vectors in a sum. heaviest: the largest weight of a center.
    bits: the size of an integer, 32 or 64.

    Of these bits, a few are headroom for the sum. The rest resolve an entry to 2^exponent / 2^precision.
    """

    entries: tuple[Entry, ...]
    centers: int
    heaviest: int = 1
    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise FedmtError(f"A masked vector has 32 or 64 bits, not {self.bits}.")
        if self.heaviest & (self.heaviest - 1) or self.heaviest < 1:
            # A power of two, so that scaling by it is exact in floating point.
            raise FedmtError(f"The largest weight of a center must be a power of two; {self.heaviest} given.")
        if self.centers < 1 or self.heaviest >= 2**self.precision:
            raise FedmtError(
                f"{self.centers} centers with weights up to {self.heaviest:,} do not fit into "
                f"{self.bits} bits."
            )

    @property
    def precision(self) -> int:
        return self.bits - 1 - ceil(log2(max(self.centers, 1)))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u4" if self.bits == 32 else "<u8")

    @property
    def _signed(self) -> np.dtype[Any]:
        return np.dtype("<i4" if self.bits == 32 else "<i8")

    @property
    def _real(self) -> np.dtype[Any]:
        return np.dtype("float32" if self.bits == 32 else "float64")

    @cached_property
    def groups(self) -> int:
        return 1 + max((e.group for e in self.entries), default=0)

    @cached_property
    def values(self) -> int:
        """The number of entries of the vector that are numbers of tensors."""
        return sum(e.size for e in self.entries)

    @property
    def length(self) -> int:
        return self.values + 2 + 2 * self.groups

    def _placed(self) -> Iterator[tuple[Entry, slice]]:
        start = 0
        for entry in self.entries:
            yield entry, slice(start, start + entry.size)
            start += entry.size

    def encode(self, update: Mapping[str, NDArray[Any]] | None, weight: int = 1) -> tuple[Vector, int]:
        """A center's vector, and the number of clipped entries. None for a center that has nothing to add.

        The result is a vector in any case, so that nobody sees who abstained.
        """
        integers = np.zeros(self.length, self._signed)
        counts = integers[self.values :]
        counts[0] = 1
        clipped = 0
        if update is not None:
            self._check(update, weight)
            for entry, place in self._placed():
                if entry.name in update:
                    scale = 2.0 ** (self.precision - entry.exponent)
                    if not entry.equal:
                        scale *= weight / self.heaviest
                    clipped += self._write(integers[place], update[entry.name], scale, entry.name)
                    counts[2 + 2 * entry.group] = 1
                    counts[3 + 2 * entry.group] = weight
        counts[1] = min(clipped, 2**self.precision - 1)
        return integers.view(self.dtype), clipped

    def _write(self, place: NDArray[Any], values: NDArray[Any], scale: float, name: str) -> int:
        # A power of two times a float is exact. With another weight, there is one rounding, which is the same
        # everywhere.
        scaled = np.multiply(values.reshape(-1), self._real.type(scale), dtype=self._real)
        # With few bits, the largest float below 2^precision would be rounded up to it, and the sum of as many
        # as there is room for would be 2^31 (or 2^63), which is negative.
        below = float(np.nextafter(self._real.type(2.0**self.precision), self._real.type(0)))
        limit = self._real.type(min(below, 2.0**self.precision - 1))
        largest = max(abs(float(scaled.max())), abs(float(scaled.min()))) if scaled.size else 0.0
        if not np.isfinite(largest):
            raise FedmtError(f"'{name}' contains NaN or Inf, which cannot be summed.")
        clipped = 0
        if largest > limit:
            clipped = int(np.count_nonzero(np.abs(scaled) > limit))
            np.clip(scaled, -limit, limit, out=scaled)
        np.rint(scaled, out=scaled)
        place[:] = scaled
        return clipped

    def _check(self, update: Mapping[str, NDArray[Any]], weight: int) -> None:
        if not 1 <= weight <= self.heaviest:
            raise FedmtError(f"A center's weight is {weight}, expected 1 to {self.heaviest:,}.")
        shapes = {e.name: e.shape for e in self.entries}
        odd = [k for k, v in update.items() if shapes.get(k) != v.shape]
        begun = {e.group for e in self.entries if e.name in update}
        missing = [e.name for e in self.entries if e.group in begun and e.name not in update]
        if odd or missing:
            raise FedmtError(f"An update does not have the agreed tensors: {listed([*odd, *missing], 3)}.")

    def decode(self, total: Vector, present: int) -> Mean:
        """The weighted mean out of a sum of `present` vectors."""
        counts, weights, clipped = self.check_counts(total, present)
        integers = total.view(self._signed)
        means: Arrays = {}
        for entry, place in self._placed():
            if counts[entry.group] == 0:
                continue
            over = counts[entry.group] if entry.equal else weights[entry.group] / self.heaviest
            step = 2.0 ** (entry.exponent - self.precision)
            means[entry.name] = (integers[place] * (step / over)).astype(self._real).reshape(entry.shape)
        names = {e.name: e.group for e in self.entries if counts[e.group]}
        return Mean(
            means,
            {k: counts[g] for k, g in names.items()},
            {k: weights[g] for k, g in names.items()},
            clipped,
        )

    def check_counts(self, total: Vector, present: int) -> tuple[list[int], list[int], int]:
        """By group, the number of senders and the sum of their weights, and the number of clipped entries.

        These counts are redundant. They are compared with each other, so a sum with a mask left in it is
        detected, except with a probability of 2^-32.
        """
        who, clipped, *counted = (int(v) for v in total.view(self._signed)[self.values :])
        counts, weights = counted[::2], counted[1::2]
        fits = all(
            0 <= n <= present and n <= w <= n * self.heaviest for n, w in zip(counts, weights, strict=True)
        )
        if who != present or clipped < 0 or not fits:
            raise NotASum(f"it counts {who} centers instead of {present}")
        return counts, weights, clipped

    def to_json(self) -> dict[str, Any]:
        entries = [[e.name, list(e.shape), e.exponent, e.group, e.equal] for e in self.entries]
        return {"entries": entries, "centers": self.centers, "heaviest": self.heaviest, "bits": self.bits}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Layout:
        entries = tuple(
            Entry(str(name), tuple(int(n) for n in shape), int(exponent), int(group), bool(equal))
            for name, shape, exponent, group, equal in given["entries"]
        )
        return cls(entries, int(given["centers"]), int(given["heaviest"]), int(given["bits"]))
