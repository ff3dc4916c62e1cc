"""The schema of a table: how rows with numbers, categories and missing values become vectors.

A schema is made from the statistics that centers reveal (statistics.py), and is the same for all of them. It
is a file, schema.toml, that a person can read and correct.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest, together
from fedmt.inputs.tables.statistics import ColumnStatistics, Statistics
from fedmt.inputs.tabular import Frame, frame_of

LIMIT = 10.0
"""A value farther from the mean, in standard deviations, is clipped to this, because laboratory values have
long tails."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Column:
    """One column of the table. missing: whether values may be missing; a numeric column then has an
    additional indicator. mean, deviation: for a numeric column. categories: for a categorical column, in
    order."""

    name: str
    type: Literal["numeric", "categorical"]
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()
    missing: bool = False

    @property
    def features(self) -> list[str]:
        """The names of its positions in the vector."""
        if self.type == "categorical":
            return [f"{self.name} = {category}" for category in self.categories]
        return [self.name, f"{self.name} is missing"] if self.missing else [self.name]


@dataclass(frozen=True)
class Schema:
    """columns: in the order of the vector."""

    columns: tuple[Column, ...]

    @classmethod
    def pooled(cls, statistics: Iterable[Statistics]) -> Schema:
        """The schema of several centers' statistics. Raises an error if their columns differ."""
        return pooled(list(statistics))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the vector's positions."""
        return tuple(feature for column in self.columns for feature in column.features)

    def encode(self, table: Any, name: str = "the table") -> Tensor:
        """Rows as float32 [N, D], from a Frame, a pandas DataFrame, or a mapping of names to columns.

        A number is encoded in standard deviations from the mean, and as 0 if it is missing. A category is
        encoded as a 1 at its position, and as no 1 if it is missing. Every cell that does not fit is
        reported, but an unknown value only once per column.
        """
        frame = table if isinstance(table, Frame) else frame_of(table, name)
        values, errors = self.encode_rows(frame)
        first: dict[str, tuple[str, int]] = {}
        for row, own in enumerate(errors):
            for error in own:
                what = error.removeprefix(frame.place(row))
                place, count = first.get(what, (frame.place(row), 0))
                first[what] = place, count + 1
        if first:
            more = {
                what: f" ({count:,} rows in all)" if count > 1 else "" for what, (_, count) in first.items()
            }
            raise together([f"{place}{what}{more[what]}" for what, (place, _) in first.items()])
        return values

    def encode_rows(self, frame: Frame) -> tuple[Tensor, list[list[str]]]:
        """The same, with the problems of each row. Raises an error if a whole column is missing."""
        absent = [column.name for column in self.columns if column.name not in frame.columns]
        if absent:
            raise FedmtError(
                f"{frame.name}: no column {listed(absent)}, which the schema has; the columns are "
                f"{listed(frame.columns, 12)}.{nearest(absent[0], frame.columns)}"
            )
        errors: list[list[str]] = [[] for _ in range(len(frame))]
        parts = [
            (_numeric if column.type == "numeric" else _categorical)(column, frame, errors)
            for column in self.columns
        ]
        return torch.from_numpy(np.concatenate(parts, 1)).float(), errors

    def told(self, row: Sequence[float]) -> list[str]:
        """'column: value' of an encoded row, the most characteristic first: numbers, starting with those
        farthest from the mean, then categories, then missing values."""
        place, ranks = 0, []
        for column in self.columns:
            ranks.append(-abs(row[place]) if column.type == "numeric" else 1.0)
            place += len(column.features)
        ranked = sorted(
            zip(ranks, self.cells(row), strict=True), key=lambda pair: (pair[1][1] == "missing", pair[0])
        )
        return [f"{name}: {cell}" for _, (name, cell) in ranked]

    def cells(self, row: Sequence[float]) -> list[tuple[str, str]]:
        """(column, value) of an encoded row, in readable form."""
        found, place = [], 0
        for column in self.columns:
            own = row[place : place + len(column.features)]
            place += len(own)
            if column.type == "categorical":
                best = max(range(len(own)), key=own.__getitem__)
                found.append((column.name, column.categories[best] if own[best] > 0.5 else "missing"))
            elif column.missing and own[1] > 0.5:
                found.append((column.name, "missing"))
            else:
                found.append((column.name, f"{own[0] * column.deviation + column.mean:.4g}"))
        return found

    # -- as a file --------------------------------------------------------------------------------

    def to_toml(self, about: str = "") -> str:
        tables = []
        for column in self.columns:
            own: dict[str, Any] = {"name": column.name, "type": column.type}
            if column.type == "numeric":
                own |= {"mean": column.mean, "deviation": column.deviation}
            else:
                own["categories"] = list(column.categories)
            tables.append(own | ({"missing": True} if column.missing else {}))
        comment = f"# {about}\n" if about else ""
        return comment + tomli_w.dumps({"columns": tables}, multiline_strings=False)

    @classmethod
    def read(cls, path: Path) -> Schema:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise FedmtError(f"{path}: this schema does not exist. {HOW}") from None
        except (OSError, ValueError) as error:
            raise FedmtError(f"{path}: not a schema that can be read: {error}.") from None
        try:
            schema = TypeAdapter(cls).validate_python(raw)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise FedmtError(f"{path}: '{place}': {first['msg'].lower()}. {HOW}") from None
        schema.check(str(path))
        return schema

    def check(self, where: str) -> None:
        names = [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        problems = [f"{where}: column '{name}' occurs more than once." for name in twice]
        for column in self.columns:
            if column.type == "categorical" and not column.categories:
                problems.append(f"{where}: column '{column.name}' has no categories.")
            if not 0 < column.deviation < inf or not isfinite(column.mean):
                problems.append(
                    f"{where}: column '{column.name}' has the mean {column.mean} and the deviation "
                    f"{column.deviation}. Both must be finite, and the deviation must be > 0. Extreme values "
                    "in the data may be the reason."
                )
        if not names:
            problems.append(f"{where}: no columns. {HOW}")
        if problems:
            raise together(problems)


HOW = "`fedmt schema federation.toml` makes it from all centers' statistics."


def _numeric(column: Column, frame: Frame, errors: list[list[str]]) -> NDArray[np.float64]:
    cells = frame.columns[column.name]
    try:
        values = frame.numbers(column.name)
    except FedmtError:
        values = np.full(len(frame), np.nan)
        for row, cell in enumerate(frame.text(column.name)):
            try:
                values[row] = float(cell) if cell else np.nan
            except ValueError:
                errors[row].append(
                    f"{frame.place(row)}: column '{column.name}' has '{cells[row]}', expected a number."
                )
    for row in np.flatnonzero(np.isinf(values)).tolist():
        errors[row].append(f"{frame.place(row)}: column '{column.name}' is infinite, expected a number.")
    missing = np.isnan(values)
    scaled = np.clip((values - column.mean) / column.deviation, -LIMIT, LIMIT)
    scaled[missing] = 0.0
    return np.stack([scaled, missing.astype(np.float64)] if column.missing else [scaled], 1)


def _categorical(column: Column, frame: Frame, errors: list[list[str]]) -> NDArray[np.float64]:
    places = {category: place for place, category in enumerate(column.categories)}
    found = np.zeros((len(frame), len(places)))
    for row, cell in enumerate(frame.text(column.name)):
        if cell in places:
            found[row, places[cell]] = 1.0
        elif cell:
            errors[row].append(
                f"{frame.place(row)}: column '{column.name}' has '{cell}', which the schema does not know."
                f"{nearest(cell, places)} Its categories are {listed(places)}; correct the "
                "cell, or add the category to the schema."
            )
    return found


# -- from statistics ------------------------------------------------------------------------------


def pooled(statistics: Sequence[Statistics]) -> Schema:
    """One schema for all centers. Identifiers and columns without any value are left out."""
    if not statistics:
        raise FedmtError("There are no statistics to make a schema from. Give those of at least one center.")
    names = dict.fromkeys(name for one in statistics for name in one.columns)
    problems = []
    columns = []
    for name in names:
        own = {one.name: one.columns.get(name) for one in statistics}
        kinds = {c.kind for c in own.values() if c is not None and c.kind != "empty"}
        if "identifier" in kinds:
            continue
        if None in own.values() or len(kinds) > 1:
            said = ", ".join(f"{at}: {'not there' if c is None else c.kind}" for at, c in own.items())
            problems.append(f"column '{name}' differs between the centers ({said})")
        elif kinds:
            columns.append(_pooled(name, [c for c in own.values() if c is not None]))
    if problems:
        advice = "Rename or correct the columns, or leave them out: `fedmt schema` has --ignore COLUMN."
        raise FedmtError("\n  ".join(["The tables do not fit together:", *problems, advice]))
    schema = Schema(tuple(columns))
    schema.check("the schema")
    return schema


def _pooled(name: str, parts: Sequence[ColumnStatistics]) -> Column:
    missing = any(part.missing for part in parts)
    if any(part.kind == "categorical" for part in parts):
        categories = sorted({category for part in parts for category in part.counts or {}})
        return Column(name, "categorical", categories=tuple(categories), missing=missing)
    _, mean, variance = pool_moments([(part.count, part.mean, part.variance) for part in parts])
    return Column(name, "numeric", mean, variance**0.5 or 1.0, missing=missing)


def pool_moments(parts: Iterable[tuple[int, float, float]]) -> tuple[int, float, float]:
    """(count, mean, variance) of all values together, computed from those of disjoint parts.

    The variance is the variance of the means plus the mean of the variances (Chan et al.): E[v] + Var[m],
    weighted by count.
    """
    parts = [part for part in parts if part[0]]
    count = sum(n for n, _, _ in parts)
    if not count:
        return 0, 0.0, 0.0
    mean = sum(n * m for n, m, _ in parts) / count
    variance = sum(n * (v + (m - mean) ** 2) for n, m, v in parts) / count
    return count, mean, variance
