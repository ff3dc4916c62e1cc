"""Tables: rows with numbers, categories and missing values, which a schema converts to vectors.

statistics.py   what a center reveals about its table
schema.py       how rows become vectors, made from the statistics of all centers
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PrivateAttr
from torch import Tensor

from fedmt.core.errors import FedmtError, cut, listed
from fedmt.core.section import ConfigPath, Section
from fedmt.inputs.base import Input
from fedmt.inputs.tables.schema import HOW, Column, Schema, pool_moments
from fedmt.inputs.tables.statistics import ColumnStatistics, Statistics
from fedmt.inputs.tabular import Frame, FromTable
from fedmt.inputs.vectors import SHOWN, Vectors
from fedmt.inputs.vectors.reading import asked

with warnings.catch_warnings():
    # pydantic keeps an old method of this name, which nothing here uses.
    warnings.filterwarnings("ignore", 'Field name "schema"')

    class TableSpec(FromTable):
        """How tables are read."""

        schema: ConfigPath | None = None  # type: ignore[assignment]
        """File that says how rows become vectors. `fedmt schema` and `fedmt init` write it."""

        _known: Schema | None = PrivateAttr(None)  # for a center that was sent its contents

        def samples(self, frame: Frame, aside: Collection[str]) -> tuple[Tensor, Input]:
            schema = self.known()
            told = [column.name for column in schema.columns if column.name in aside]
            if told:
                raise FedmtError(
                    f"{frame.name}: the schema lists {listed(told)} as a feature, but in the config it holds "
                    f"labels or groups. Remove it from the schema. {HOW}"
                )
            return schema.encode(frame), Tables.by(schema)

        def known(self) -> Schema:
            if self._known is not None:
                return self._known
            if self.schema is None:
                raise FedmtError(f'tables.schema: missing; set [tables] schema = "schema.toml". {HOW}')
            return Schema.read(self.schema)


@dataclass(frozen=True)
class Tables(Vectors):
    """Stored as float32 [N, D], as encoded by the schema. `columns` are the names of the D positions."""

    name: ClassVar[str] = "tables"
    word: ClassVar[str] = "row"
    options: ClassVar[type[Section]] = TableSpec

    schema: Schema | None = None

    @classmethod
    def without_reference(cls, options: Section) -> Section:
        # A center cannot make the schema, because it lacks the statistics of the others.
        assert isinstance(options, TableSpec)
        if options.schema is not None and not options.schema.exists():
            raise FedmtError(
                f"{options.schema}: this schema does not exist. Ask the coordinator for a copy, and put it "
                "there, or correct tables.schema in your copy of the config."
            )
        return options

    @classmethod
    def by(cls, schema: Schema) -> Tables:
        return cls((len(schema.features),), schema.features, schema=schema)

    @property
    def known(self) -> Schema:
        if self.schema is None:
            raise FedmtError(f"These {self.word}s came without a schema. {HOW}")
        return self.schema

    def settled(self, samples: Tensor) -> Tables:
        return self  # the schema has already standardized them

    def mismatch(self, other: Input) -> str:
        return "another schema than the reference center; encode all tables with the same schema"

    def reading(self, cache: Path) -> Section:
        options = TableSpec()
        options._known = self.known
        return options

    def statistics(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return self.identity_statistics

    def preview(self, sample: Tensor) -> Mapping[str, str]:
        """The few cells that characterize the row most."""
        if self.schema is None:
            return super().preview(sample)
        return {"text": cut(self.schema.told(sample.tolist()), SHOWN)}

    def batches(self, given: Any) -> Iterator[Tensor]:
        if hasattr(given, "columns") or isinstance(given, Mapping):
            yield from self.known.encode(given).split(4096)
            return
        yield from asked(given, self.shape[0], (), "encoded row").split(4096)

    def decode(self, frame: Frame) -> tuple[Tensor, list[str | None]]:
        values, problems = self.known.encode_rows(frame)
        return values, [" ".join(own) or None for own in problems]


__all__ = [
    "Column",
    "ColumnStatistics",
    "Schema",
    "Statistics",
    "TableSpec",
    "Tables",
    "pool_moments",
]
