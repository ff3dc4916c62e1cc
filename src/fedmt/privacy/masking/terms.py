"""What all participants of a run with secure aggregation agree on. It is public."""

from __future__ import annotations

from dataclasses import dataclass


def least_threshold(centers: int) -> int:
    """The smallest t with 2 t >= n + 2.

    A coordinator that tells centers different things about who survived can learn sums of 2 t - n centers, so
    with a smaller threshold it could learn a single center's update (docs/guides/secure-aggregation.md; a
    test demonstrates it).
    """
    return -(-(centers + 2) // 2)


def usual_threshold(centers: int) -> int:
    """Two thirds of the centers, rounded up, and at least the safe minimum."""
    return max(least_threshold(centers), -(-2 * centers // 3))


@dataclass(frozen=True)
class Summing:
    """threshold: the smallest number of centers in a sum. max_samples: no center has more."""

    threshold: int
    max_samples: int

    @property
    def heaviest(self) -> int:
        """The largest weight of a center in a sum that is weighted by samples."""
        return 1 << (self.max_samples - 1).bit_length()
