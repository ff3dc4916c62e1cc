"""Data frames in memory as samples: rows of a table by a schema, or vectors of their columns.

As in `fedmt schema`, the schema is made from the centers' statistics (mean, variance, counts).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedmt.core.errors import FedmtError, listed
from fedmt.data.identifiers import names_groups
from fedmt.inputs import INPUTS, Input
from fedmt.inputs.tables import Schema, Statistics, Tables
from fedmt.inputs.tabular import FromTable, frame_of

NO_FEATURE = ("empty", "identifier")
"""The kinds of columns that a schema leaves out."""

Reader = Callable[[Any, str], tuple[Tensor, Input | type[Input]]]
"""Converts what a user gave, with its place for errors, to stored samples and their input."""


def is_frame(given: object) -> bool:
    """Whether it is a pandas DataFrame. pandas is an optional package, so this check does not import it."""
    kind = type(given)
    return kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas"


def left_out(input: Input, frames: Sequence[Any]) -> tuple[str, ...]:
    """A note about the columns that are not features, if there are any. input: that of the frames."""
    if not isinstance(input, Tables):
        return ()
    used = {column.name for column in input.known.columns}
    others = [c for c in dict.fromkeys(str(c) for frame in frames for c in frame) if c not in used]
    if not others:
        return ()
    return (
        f"Columns left out: {listed(others)}. A column is not a feature if it has no values, if it names "
        "patients or cases (give it as `groups`), or if it differs in nearly every row, like an identifier, "
        "a date or sorted whole numbers. To keep one of the last kind, convert dates to numbers, or shuffle "
        "the rows.",
    )


def by_names(matrix: Any) -> Any:
    """A matrix as a DataFrame, by the names of its rows and columns, whose order is that of a cross table."""
    if all(isinstance(name, str) for name in (*matrix.index, *matrix.columns)):
        return {column: matrix[column].to_dict() for column in matrix}
    return matrix.sort_index().sort_index(axis=1).to_numpy()  # they are positions


def frame_reader(kind: type[Input], training: Mapping[str, Any], aside: Collection[str] = ()) -> Reader:
    """How frames become samples of `kind`. training: the frames of the centers, by their places. aside:
    columns that are not features."""
    if issubclass(kind, Tables):
        kinds = [(str(c), str(kind)) for frame in training.values() for c, kind in frame.dtypes.items()]
        codes = {column for column, kind in kinds if kind == "category"} - set(aside)
        frames = [frame_of(frame, where) for where, frame in training.items()]
        # As in `fedmt schema`, a column that names patients would only help to recognize them.
        titled = {t for f in frames for t in f.columns if t not in codes and names_groups(t, f.text(t))}
        statistics = [
            Statistics.of(frame, frame.name, {*aside, *titled}, codes & set(frame.columns))
            for frame in frames
        ]
        if all(c.kind in NO_FEATURE for own in statistics for c in own.columns.values()):
            raise FedmtError(
                "The data frames have no column that can be a feature: each is empty, or differs in nearly "
                "every row. For texts, pass the column itself, such as frame['text']."
            )
        schema = Schema.pooled(statistics)
        return lambda frame, where: (schema.encode(frame, where), Tables.by(schema))
    if not issubclass(kind.options, FromTable):
        raise FedmtError(f"input: '{INPUTS.name_of(kind)}' cannot be read from data frames; give arrays.")
    options = kind.options()
    return lambda frame, where: options.samples(frame_of(frame, where), ())
