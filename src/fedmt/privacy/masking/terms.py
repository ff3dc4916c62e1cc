"""What everybody in a run with secure aggregation agrees on; it is public."""

from __future__ import annotations

from dataclasses import dataclass


def usual_threshold(centers: int) -> int:
    """Two thirds of the centers, rounded up, and at least two."""
    return max(2, -(-2 * centers // 3))


@dataclass(frozen=True)
class Summing:
    """threshold: the fewest centers in a sum. max_samples: no center has more."""

    threshold: int
    max_samples: int

    @property
    def heaviest(self) -> int:
        """The largest weight of a center in a sum that is weighted by samples."""
        return 1 << (self.max_samples - 1).bit_length()
