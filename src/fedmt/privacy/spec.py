"""The table [privacy]: of a center's own file, or of a simulation's config for all of its centers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedmt.core.section import Section

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PrivacySpec(Section):
    """What a center promises each of its records: (epsilon, delta) for all that it ever sends.

    clip: the largest length of what one record adds to a step: of its gradient, over all of its views.
    size: the number of records that everybody may know, by which batches are drawn; a round number near the
        true one will do. Not set: the true number, which is then public.
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip: Positive = 1.0
    size: Annotated[int, Field(ge=1)] | None = None

    def public_size(self, records: int) -> int:
        """The number of records that may be known, at a center that has so many."""
        return self.size or records
