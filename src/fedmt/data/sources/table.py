"""The rows of a CSV or Parquet file: features and labels in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from fedmt.core.errors import FedmtError, together
from fedmt.core.labels import LabelSpace, class_name
from fedmt.data.groups import group_numbers
from fedmt.data.sampleset import SampleSet, label_positions
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.tabular import Frame, FromTable, also, read_frame


class Table(Source):
    """`path` is a CSV or Parquet file with a row for each sample; labels are in `label_column`, or in
    `label_columns`, one for each label space. `group_column` names what belongs together, such as a
    patient."""

    name = "table"
    input: ClassVar[str | None] = None

    def read(self, request: Request) -> SampleSet:
        options, space, spec = request.options, request.space, request.spec
        if not isinstance(options, FromTable):
            raise FedmtError(
                f"{request.where}: source 'table' reads rows of numbers, which is not the config's `input`; "
                'set input = "vectors" or "tables".'
            )
        columns = spec.label_columns
        if columns is None:
            columns = {} if space is None else {space.name: spec.label_column}
        frame = read_frame(request.path)
        kept_together = [] if spec.group_column is None else [spec.group_column]
        _refuse_empty(frame, [*columns.values(), *kept_together])
        spaces: dict[str, LabelSpace] = {}
        labels: dict[str, Tensor] = {}
        places = [frame.place(row) for row in range(len(frame))]
        for name, column in columns.items():  # labels come first, because they are quick to check
            names = [class_name(cell) for cell in frame.text(column)]
            known = space is not None and space.name == name
            spaces[name] = space if known and space else LabelSpace(name, sorted(set(names)))
            labels[name] = label_positions(names, spaces[name], places)
        sites = [] if spec.site_column is None else [spec.site_column]
        aside = {spec.label_column, *columns.values(), *kept_together, *sites}
        samples, input = options.samples(frame, aside)
        groups = None if spec.group_column is None else group_numbers(frame.text(spec.group_column))
        return SampleSet(samples, labels, spaces, input=input, groups=groups)


def _refuse_empty(frame: Frame, columns: Sequence[str]) -> None:
    """Checks that no label or group is missing."""
    problems = []
    for column in columns:
        empty = [row for row, cell in enumerate(frame.text(column)) if not cell]
        if empty:
            problems.append(
                f"{frame.place(empty[0])}: the column '{column}' is empty{also(len(empty))}; fill it in "
                "or remove the row."
            )
    if problems:
        raise together(problems)
