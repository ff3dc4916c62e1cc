"""The rows of a CSV or Parquet file: features and a label in columns."""

from __future__ import annotations

from typing import ClassVar

from fedmt.core.errors import FedmtError
from fedmt.core.labels import class_name
from fedmt.data.sampleset import SampleSet, label_positions
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.tabular import FromTable, read_frame


class Table(Source):
    """`path` is a CSV or Parquet file with a row for each sample; `label_column` names the labels."""

    name = "table"
    input: ClassVar[str | None] = None

    def read(self, request: Request) -> SampleSet:
        options, space, column = request.options, request.space, request.spec.label_column
        if not isinstance(options, FromTable):
            raise FedmtError(
                f"{request.where}: source 'table' reads rows of numbers, which is not the config's `input`; "
                'set input = "vectors" or "tables".'
            )
        frame = read_frame(request.path)
        labels = None
        if space is not None:  # first: they are quickly checked
            names = [class_name(cell) for cell in frame.text(column)]
            empty = [i for i, name in enumerate(names) if not name]
            if empty:
                raise FedmtError(
                    f"{frame.place(empty[0])}: the column '{column}' is empty ({len(empty):,} rows in all); "
                    "fill it in or remove the row."
                )
            labels = label_positions(names, space, [frame.place(i) for i in range(len(frame))])
        samples, input = options.samples(frame, {column})
        if space is None or labels is None:
            return SampleSet(samples, input=input)
        return SampleSet(samples, {space.name: labels}, {space.name: space}, input=input)
