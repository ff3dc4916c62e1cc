"""Data frames in memory as samples: rows of a table by a schema, or vectors of their columns.

As in `fedmt schema`, the schema is made from the centers' statistics (mean, variance, counts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.inputs import INPUTS, Input
from fedmt.inputs.tables import Schema, Statistics, Tables
from fedmt.inputs.tabular import FromTable, frame_of

Reader = Callable[[Any, str], tuple[Tensor, Input | type[Input]]]
"""Converts what a user gave, with its place for errors, to stored samples and their input."""


def is_frame(given: object) -> bool:
    """Whether it is a pandas DataFrame. pandas is an optional package, so this check does not import it."""
    kind = type(given)
    return kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas"


def frame_reader(kind: type[Input], training: Mapping[str, Any]) -> Reader:
    """How frames become samples of `kind`. training: the frames of the centers, by their places."""
    if issubclass(kind, Tables):
        codes = {str(c) for frame in training.values() for c in frame if str(frame[c].dtype) == "category"}
        schema = Schema.pooled(
            Statistics.of(frame, where, categorical=codes & set(map(str, frame)))
            for where, frame in training.items()
        )
        return lambda frame, where: (schema.encode(frame, where), Tables.by(schema))
    if not issubclass(kind.options, FromTable):
        raise FedmtError(f"input: '{INPUTS.name_of(kind)}' cannot be read from data frames; give arrays.")
    options = kind.options()
    return lambda frame, where: options.samples(frame_of(frame, where), ())
