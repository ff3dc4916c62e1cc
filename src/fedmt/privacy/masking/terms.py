"""What everybody in a run with secure aggregation agrees on; it is public."""

from __future__ import annotations

from dataclasses import dataclass


def least_threshold(centers: int) -> int:
    """The smallest t with 2 t >= n + 2.

    A coordinator that tells centers different things about who survived can learn sums of 2 t - n centers, so
    with less it could learn one center's update (docs/guides/secure-aggregation.md; a test does it).
    """
    return -(-(centers + 2) // 2)


def usual_threshold(centers: int) -> int:
    """Two thirds of the centers, rounded up, and no less than is safe."""
    return max(least_threshold(centers), -(-2 * centers // 3))


@dataclass(frozen=True)
class Summing:
    """threshold: the fewest centers in a sum. max_samples: no center has more."""

    threshold: int
    max_samples: int

    @property
    def heaviest(self) -> int:
        """The largest weight of a center in a sum that is weighted by samples."""
        return 1 << (self.max_samples - 1).bit_length()
