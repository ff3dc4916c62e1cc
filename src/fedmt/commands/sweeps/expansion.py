"""An experiment to its runs: rows x columns x seeds, each with its checked config. Nothing is loaded,
trained or written here."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmt.commands.sweeps.experiment import Experiment, Part, Row, default_data
from fedmt.commands.sweeps.scales import Scale, scale_settings
from fedmt.config import Config, dump_config, override, parse_config
from fedmt.config.errors import Origin
from fedmt.core.errors import FedmtError, listed
from fedmt.inputs import DEFAULT_INPUT


@dataclass(frozen=True)
class Run:
    """One run of one cell: its checked config and its own folder."""

    label: str
    config: Config
    text: str
    key: str
    """Folder name. It is a function of the resolved config, so that equal runs share a folder wherever they
    come from."""

    @property
    def digest(self) -> str:
        return self.key.rsplit("-", 1)[1]


@dataclass(frozen=True)
class Cell:
    """A row and a column: one run per seed, or no runs and the reason."""

    row: str
    column: str
    runs: tuple[Run, ...]
    selected: bool = True
    skipped: str = ""
    random_start: bool = False
    """Whether the paper started from ImageNet weights here and this run does not."""


@dataclass(frozen=True)
class Sweep:
    """The options of an experiment given on the command line."""

    seeds: int = 3
    scale: Scale = "full"
    only: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    weights: tuple[Path, ...] = ()
    data: Path | None = None


def expand(experiment: Experiment, sweep: Sweep) -> list[Cell]:
    """All cells, row by row, with their runs: base < set < row < column < cell < scale < --set, by seed.

    Every config of a requested cell is checked. Cells that `only` leaves out are expanded as far as possible,
    so that their known results can be shown.
    """
    reasons = {(s.row, s.column): s.reason for s in experiment.file.skip}
    cells = []
    for row in experiment.file.rows:
        for column in experiment.file.columns:
            selected = _selected(row.label, column.label, sweep.only)
            if (row.label, column.label) in reasons:
                reason = reasons[row.label, column.label]
                cells.append(Cell(row.label, column.label, (), selected, reason))
                continue
            try:
                cells.append(_cell(experiment, row, column, sweep, selected))
            except FedmtError:
                if selected:
                    raise
                cells.append(Cell(row.label, column.label, (), False))
    if not any(c.selected for c in cells):
        labels = [p.label for p in (*experiment.file.columns, *experiment.file.rows)]
        raise FedmtError(
            f"--only {listed(sweep.only)}: no row or column has this in its label. Labels: "
            f"{listed(labels, 30)}."
        )
    return cells


def _selected(row: str, column: str, only: Sequence[str]) -> bool:
    label = f"{column}, {row}".casefold()
    return not only or any(text.casefold() in label for text in only)


def _cell(experiment: Experiment, row: Row, column: Part, sweep: Sweep, selected: bool) -> Cell:
    base = experiment.bases[row.label]
    raw = copy.deepcopy(base.raw)
    parts = {
        "set: ": experiment.file.set,
        f"row '{row.label}': ": row.set,
        f"column '{column.label}': ": column.set,
        f"row '{row.label}', cell '{column.label}': ": row.cells.get(column.label, {}),
    }
    settings = {key: value for part in parts.values() for key, value in _flat(part)}
    name = settings.get("method.name")
    if name is not None and name != raw.get("method", {}).get("name", "fedmt"):
        raw["method"] = {}  # the base's options belong to another method
    origin = _CellOrigin(base.path, base.text)
    for place, part in parts.items():
        for key, value in _flat(part):
            where = f"{experiment.path}, {place}"
            if key == "seed":
                raise FedmtError(
                    f"{where}seed: the seeds of an experiment are 0 to N-1. Choose N with --seeds."
                )
            _put(raw, key, value, where)
            origin.places[tuple(key.split("."))] = where
    _move_data(raw, experiment, base.path, sweep.data)
    config = parse_config(raw, origin)
    uses = {part.weights for part in (row, column)} - {None}
    file = _weights_for(config.model.backbone, sweep) if uses and config.model.weights is None else None
    if file is not None:
        _put(raw, "model.weights", str(file.resolve()), "")
    elif "needed" in uses and config.model.weights is None:
        why = "needs ImageNet weights (--weights)" if sweep.scale == "full" else "no weights at this scale"
        return Cell(row.label, column.label, (), selected, why)
    for key, value in scale_settings(config, sweep.scale).items():
        _put(raw, key, value, "")
        origin.places[tuple(key.split("."))] = f"--scale {sweep.scale}: "
    for item in sweep.overrides:
        keys = override(raw, item)
        if keys == ("seed",):
            raise FedmtError("--set seed: the seeds of an experiment are 0 to N-1. Choose N with --seeds.")
        origin.places[keys] = f"--set {'.'.join(keys)} ({row.label}, {column.label}): "
    config = parse_config(raw, origin)
    label = f"{column.label}, {row.label}"
    runs = tuple(_run(config.model_copy(update={"seed": seed}), label) for seed in range(sweep.seeds))
    return Cell(row.label, column.label, runs, selected, "", bool(uses) and config.model.weights is None)


def _run(config: Config, label: str) -> Run:
    text = dump_config(config)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    data = config.benchmark.data.source if config.benchmark is not None else "federation"
    method = config.method["name"]
    if config.method.get("correspondence") == "estimated":
        method += "-estimated"
    readable = re.sub(r"[^\w.-]+", "-", f"{data}-{method}-seed{config.seed}")
    return Run(f"{label}, seed {config.seed}", config, text, f"{readable}-{digest}")


@dataclass(frozen=True)
class _CellOrigin(Origin):
    """Names the row, column, scale or --set that a setting came from, or else the base config."""

    places: dict[tuple[str, ...], str] = field(default_factory=dict)

    def place(self, *location: int | str) -> str:
        for key, where in reversed(self.places.items()):
            # The second case: a whole table is rejected that only this setting introduced.
            if location[: len(key)] == key or (location and key[: len(location)] == location):
                return where
        return super().place(*location)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key: `{"a.b" = 1}` and `{a = {b = 1}}` mean the same."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(raw: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Sets a dotted key. None removes it."""
    *tables, last = key.split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise FedmtError(f"{where}'{key}': '{table}' is not a table.")
    if value is None:
        raw.pop(last, None)
    else:
        raw[last] = value


def _weights_for(backbone: str, sweep: Sweep) -> Path | None:
    """The file of --weights whose name begins with the backbone's name, as torchvision names its files. A
    single file with another name is used for every backbone."""
    for file in sweep.weights:
        if not file.is_file():
            raise FedmtError(f"--weights {file}: there is no such file.")
        if file.name.startswith(backbone):
            return file
    named = any(f.name.startswith(("resnet", "mobilenet")) for f in sweep.weights)
    return sweep.weights[0] if len(sweep.weights) == 1 and not named else None


def _move_data(raw: dict[str, Any], experiment: Experiment, base: Path, data: Path | None) -> None:
    """Redirects paths of the base config into `data`, next to the experiments' folder, to --data."""
    home = experiment.path.resolve().parent.parent / "data"
    goal = (data or default_data(experiment.path.resolve().parent)).resolve()

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: moved(v) for k, v in value.items()}
        if isinstance(value, list):
            return [moved(v) for v in value]
        if isinstance(value, str) and "/" in value:
            path = (base.parent / value).resolve()
            if path.is_relative_to(home):
                return str(goal / path.relative_to(home))
        return value

    for table in ("benchmark", "reference", "centers", "tests", raw.get("input", DEFAULT_INPUT.name)):
        if table in raw:
            raw[table] = moved(raw[table])
