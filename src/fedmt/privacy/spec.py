"""The table [privacy], in a center's own file, or in a simulation's config for all of its centers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedmt.core.section import Section

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PrivacySpec(Section):
    """What a center promises each of its records: (epsilon, delta) for everything that it ever sends."""

    epsilon: Positive
    """Budget for everything that the center ever sends. Smaller is more private and less accurate; 1 to 8 is
    usual."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    """Probability with which the promise may fail. Choose it well below 1 / number of records."""
    clip: Positive = 1.0
    """Largest norm of the gradient of one record, over all of its views."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Number of records to calculate with, which others may learn. A round number near the true one is
    enough. If it is not set, the true number is used."""

    def public_size(self, records: int) -> int:
        """The number of records that may be known, at a center with this many."""
        return self.size or records
