"""Data that stay on a center's own machine, which alone knows where they are (docs/guides/deployment.md)."""

from __future__ import annotations

from typing import ClassVar

from fedmt.core.errors import FedmtError
from fedmt.data.sampleset import SampleSet
from fedmt.data.sources.base import Request, Source


class Remote(Source):
    """Nothing can be read here."""

    name = "remote"
    input: ClassVar[str | None] = None
    needs_path: ClassVar[bool] = False

    def read(self, request: Request) -> SampleSet:
        raise FedmtError(
            f"{request.where}: its data stay on its own machine (source = 'remote'), so it trains there, "
            "over Flower. See docs/guides/deployment.md."
        )
