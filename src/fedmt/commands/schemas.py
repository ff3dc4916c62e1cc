"""`fedmt schema`: how the tables of all centers become vectors, from their statistics.

In a simulation, one call makes the schema: it computes the statistics of each center separately and then
pools them. Between machines, each center writes its statistics, and the coordinator pools what it was sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedmt.config import Config, load_config
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.data.identifiers import names_groups
from fedmt.data.specs import SourceSpec
from fedmt.inputs.tables import Schema, Statistics, TableSpec
from fedmt.inputs.tabular import Frame, read_frame
from fedmt.runs.files import write_atomically, writing


def command_line(
    paths: Sequence[Path],
    statistics: bool,
    pool: bool,
    out: Path | None,
    ignore: Sequence[str],
    categorical: Sequence[str],
    label_column: str,
    force: bool,
    console: Console,
) -> None:
    """Writes a schema or, with `statistics`, the statistics of one table. console: for messages about it."""
    if statistics and pool:
        raise FedmtError(
            "schema: --statistics is for a center and --pool is for the coordinator. Give only one of them."
        )
    if len(paths) > 1 and not pool:
        raise FedmtError(
            f"schema: {len(paths)} files were given, but one was expected. Only --pool takes several."
        )
    if statistics:
        _free(out, force, "--out berlin.json")
        found, titled = _of_table(paths[0], ignore, categorical, label_column)
        target = _write(out, found.to_json())
        tell_identifiers([found], console, titled)
        console.print(
            f"Wrote {target}: counts, means and variances of {found.rows:,} rows, but no row. Read it, then "
            "send it to the coordinator, who pools the statistics of all centers: fedmt schema --pool "
            f"{target.name} … --out schema.toml",
            soft_wrap=True,
        )
        return
    if pool:
        parts, titled = _of_files(paths, ignore), []
        following = "Send it to every center, and set [tables] schema to it in the config."
    else:
        config = load_config(paths[0])
        if not isinstance(config.options, TableSpec):
            raise FedmtError(
                f'{paths[0]}: input = "{config.input}" needs no schema. A schema belongs to input = "tables".'
            )
        out = out or config.options.schema
        parts, titled = _of_config(config, ignore, categorical)
        following = f"Next: fedmt check {paths[0]}"
    _free(out, force, "--out schema.toml, or [tables] schema in the config")
    schema = Schema.pooled(parts)
    rows = sum(part.rows for part in parts)
    about = f"Pooled from the statistics of {listed([p.name for p in parts], 20)}: {rows:,} rows in total."
    target = _write(out, schema.to_toml(about))
    tell_identifiers(parts, console, titled)
    numeric = sum(column.type == "numeric" for column in schema.columns)
    console.print(
        f"Wrote {target}: {numeric} numeric and {len(schema.columns) - numeric} categorical columns become "
        f"{len(schema.features)} features. {following}",
        soft_wrap=True,
    )


def _of_table(
    path: Path, ignore: Collection[str], categorical: Collection[str], label_column: str
) -> tuple[Statistics, list[str]]:
    """The statistics of one center's table, and the columns left out because of their titles."""
    frame = read_frame(path)
    if label_column and label_column not in frame.columns:
        raise FedmtError(
            f"{frame.name}: no column '{label_column}'; the columns are {listed(frame.columns, 12)}. "
            "Name the column of the labels with --label-column, so that it is not taken as a feature. "
            'If there are no labels, give --label-column "".'
        )
    _check_ignored(ignore, [frame.columns])
    titled = _titled(frame, categorical)
    return Statistics.of(frame, path.stem, {label_column, *ignore, *titled}, categorical), titled


def _of_files(paths: Sequence[Path], ignore: Collection[str]) -> list[Statistics]:
    """The statistics that the centers sent, without the ignored columns."""
    sent = [Statistics.from_json(path) for path in paths]
    _check_ignored(ignore, [part.columns for part in sent])
    return [
        replace(part, columns={t: c for t, c in part.columns.items() if t not in ignore}) for part in sent
    ]


def _titled(frame: Frame, categorical: Collection[str]) -> list[str]:
    """The columns that name patients or the like by their titles. As in `fedmt init`: their counts would
    name each patient, and a model would learn to recognize patients."""
    return [t for t in frame.columns if t not in categorical and names_groups(t, frame.text(t))]


def _of_config(
    config: Config, ignore: Collection[str], categorical: Collection[str]
) -> tuple[list[Statistics], list[str]]:
    """The statistics of each center separately, and the columns left out because of their titles. Tests are
    not included."""
    named: list[tuple[str, SourceSpec]] = [(center.name, center) for center in config.centers]
    if config.reference is not None:
        named.insert(0, (config.reference.name, config.reference))
    if config.benchmark is not None:
        named.append(("benchmark", config.benchmark.data))
    # A column of labels, groups or sites at one center is a feature at no other.
    labels = {column for _, spec in named for column in _no_features(spec)}
    found, problems, frames = [], [], list[tuple[str, Frame]]()
    for name, spec in named:
        if spec.source != "table" or spec.path is None:
            raise FedmtError(
                f"center '{name}': source '{spec.source}' has no table here. If the data stay on their own "
                "machines, run `fedmt schema --statistics` there and `fedmt schema --pool` here."
            )
        try:
            frames.append((name, read_frame(spec.path)))
        except FedmtError as error:
            problems.append(f"center '{name}': {error}")
    aside = {*labels, *ignore}
    titles = dict.fromkeys(t for _, frame in frames for t in _titled(frame, categorical))
    titled = [title for title in titles if title not in aside]
    for name, frame in frames:
        try:
            found.append(Statistics.of(frame, name, {*aside, *titled}, categorical))
        except FedmtError as error:
            problems.append(f"center '{name}': {error}")
    if problems:
        raise FedmtError("\n".join(problems))
    _check_ignored(ignore, [frame.columns for _, frame in frames])
    return found, titled


def _check_ignored(ignore: Collection[str], tables: Sequence[Iterable[str]]) -> None:
    """Raises an error for a column that no table has: a spelling mistake would reveal the one that was
    meant."""
    known = list(dict.fromkeys(title for table in tables for title in table))
    for name in ignore:
        if name not in known:
            raise FedmtError(
                f"--ignore {name}: no table has this column; the columns are {listed(known, 12)}."
                f"{nearest(name, known)}"
            )


def _no_features(spec: SourceSpec) -> list[str]:
    """The columns of labels, groups and sites."""
    others = [column for column in (spec.group_column, spec.site_column) if column is not None]
    return [spec.label_column, *(spec.label_columns or {}).values(), *others]


def tell_identifiers(parts: Sequence[Statistics], console: Console, titled: Collection[str] = ()) -> None:
    """titled: columns that are excluded from the features because of their titles alone."""
    names = dict.fromkeys(
        name for part in parts for name, column in part.columns.items() if column.kind == "identifier"
    )
    if titled:
        console.print(
            f"Note: left out as identifiers because of their titles: {listed(titled)}.", soft_wrap=True
        )
    if names:
        console.print(
            f"Note: left out as identifiers because nearly every row has a different value: {listed(names)}.",
            soft_wrap=True,
        )


def _free(out: Path | None, force: bool, how: str) -> None:
    if out is None:
        raise FedmtError(f"schema: where should it be written? Give {how}.")
    if out.exists() and not force:
        raise FedmtError(f"{out} already exists. Give another --out, or replace it with --force.")


def _write(out: Path | None, text: str) -> Path:
    assert out is not None
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
    return out
