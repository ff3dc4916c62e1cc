"""An experiment: a config, swept over rows and columns, and the figures that the paper prints beside.

This file reads `experiments/NAME.toml` and turns it into runs; nothing is loaded, trained or written
here. docs/reproduce.md describes the format and the scales.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedmt.config import Config, dump_config, override, parse_config, read_toml
from fedmt.config_errors import Origin, explain
from fedmt.data.specs import Section
from fedmt.errors import FedmtError, listed, nearest

Scale = Literal["full", "small", "tiny"]
SCALES: tuple[Scale, ...] = ("full", "small", "tiny")

Figure = float | tuple[float] | tuple[float, float]
"""What the paper prints: a mean, or a mean and a standard deviation."""

KNOWN_SETS = {"cifar100": (50_000, 100), "fashion_mnist": (7_000, 10)}
"""Training images and wanted classes, to tell a run's cost without the data."""


class Part(Section):
    """What rows and columns have in common.

    set: settings by dotted key. weights: the paper starts these runs from ImageNet weights, so they take the
    file of `--weights`; without one, 'used' starts at random and says so, 'needed' is left out.
    """

    label: str = Field(min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    weights: Literal["used", "needed"] | None = None


class Row(Part):
    """A row. paper: figures by column, of the first metric shown; or by metric, then by column."""

    paper: dict[str, Figure | dict[str, Figure]] = Field(default_factory=dict)


class Skip(Section):
    """A cell that makes no sense, and why."""

    row: str
    column: str
    reason: str = Field(min_length=1)


class ExperimentFile(Section):
    """A whole experiment file."""

    title: str = Field(min_length=1)
    paper: str | None = None
    config: Path
    show: list[str] = Field(min_length=1)
    curves: list[str] = Field(default_factory=list)
    note: str | None = None
    columns: list[Part] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    skip: list[Skip] = Field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """An experiment file, and the config that it sweeps."""

    name: str
    path: Path
    file: ExperimentFile
    base_path: Path
    base: dict[str, Any]
    base_text: str

    def paper_figure(self, metric: str, row: str, column: str) -> tuple[float, ...] | None:
        """What the paper prints for a cell, or None."""
        (found,) = [r for r in self.file.rows if r.label == row]
        by_metric = found.paper.get(metric)
        figure = by_metric.get(column) if isinstance(by_metric, dict) else None
        if figure is None and metric == self.file.show[0]:
            flat = found.paper.get(column)
            figure = None if isinstance(flat, dict) else flat
        return (figure,) if isinstance(figure, int | float) else figure


@dataclass(frozen=True)
class Run:
    """One run of one cell: its checked config and the folder that is its alone."""

    label: str
    config: Config
    text: str
    key: str
    """Folder name: a function of the resolved config, so that equal runs meet wherever they come from."""

    @property
    def digest(self) -> str:
        return self.key.rsplit("-", 1)[1]


@dataclass(frozen=True)
class Cell:
    """A row and a column: a run for each seed, or none and why."""

    row: str
    column: str
    runs: tuple[Run, ...]
    selected: bool = True
    skipped: str = ""
    random_start: bool = False
    """Whether the paper started from ImageNet weights here and this does not."""


@dataclass(frozen=True)
class Sweep:
    """What the command line says of an experiment."""

    seeds: int = 3
    scale: Scale = "full"
    only: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    weights: tuple[Path, ...] = ()
    data: Path | None = None


# -- finding and reading -------------------------------------------------------------------------------


def experiments_folder() -> Path:
    """The shipped experiments: inside an installed package, or beside `src` in a source tree."""
    here = Path(__file__).resolve().parents[1]
    packaged = here / "experiments"
    return packaged if packaged.is_dir() else here.parents[1] / "experiments"


def default_data(folder: Path) -> Path:
    """`data` beside the experiments; in the current folder where they are part of an installed package."""
    packaged = folder == Path(__file__).resolve().parents[1] / "experiments"
    return (Path.cwd() if packaged else folder.parent) / "data"


def known_experiments(folder: Path | None = None) -> dict[str, Path]:
    """The shipped experiment files by name."""
    return {p.stem: p for p in sorted((folder or experiments_folder()).glob("*.toml"))}


def find_experiment(name: str) -> Path:
    """The file of a shipped experiment, or of the user's own by its path."""
    known = known_experiments()
    if name in known:
        return known[name]
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    raise FedmtError(
        f"No experiment '{name}'.{nearest(name, known)} Known: {listed(known, 30)}; or give the path of a "
        "TOML file of your own."
    )


def read_experiment(path: Path) -> Experiment:
    """Reads and checks an experiment file; its cells are checked by `expand`."""
    raw, text = read_toml(path)
    origin = Origin(path, text)
    if "rows" not in raw and raw.keys() & {"benchmark", "reference", "centers"}:
        raise FedmtError(
            f"{path} is one federation, not an experiment: `fedmt run {path}` runs it. An experiment names "
            "it as its config, with [[rows]] and [[columns]] of settings (docs/reproduce.md)."
        )
    try:
        file = ExperimentFile.model_validate(raw)
    except ValidationError as error:
        raise FedmtError(explain(error, ExperimentFile, (), origin)) from None
    _check_labels(file, origin)
    base_path = (path.parent / file.config).resolve()
    if not base_path.is_file():
        raise FedmtError(f"{origin.place('config')}config: there is no file {base_path}.")
    base, base_text = read_toml(base_path)
    return Experiment(path.stem, path, file, base_path, base, base_text)


def _check_labels(file: ExperimentFile, origin: Origin) -> None:
    columns, rows = [c.label for c in file.columns], [r.label for r in file.rows]
    for kind, labels in (("columns", columns), ("rows", rows)):
        double = [label for label in labels if labels.count(label) > 1]
        if double:
            raise FedmtError(f"{origin.place(kind)}{kind}: the label '{double[0]}' is there twice.")

    def known(label: str, labels: list[str], where: str) -> None:
        if label not in labels:
            raise FedmtError(f"{where}: no '{label}'.{nearest(label, labels)} Known: {listed(labels, 20)}.")

    for number, row in enumerate(file.rows):
        where = f"{origin.place('rows', number, 'paper')}rows.{number}.paper"
        for key, value in row.paper.items():
            known(key, file.show if isinstance(value, dict) else columns, where)
            for column in value if isinstance(value, dict) else ():
                known(column, columns, where)
    for number, skip in enumerate(file.skip):
        known(skip.row, rows, f"{origin.place('skip', number)}skip.{number}.row")
        known(skip.column, columns, f"{origin.place('skip', number)}skip.{number}.column")


# -- expansion -----------------------------------------------------------------------------------------


def expand(experiment: Experiment, sweep: Sweep) -> list[Cell]:
    """All cells, row by row, with their runs: base < row < column < scale < --set, for each seed.

    Every config of a cell that was asked for is checked. Cells that `only` leaves out are expanded as far
    as they go, so that what is known of them can be shown.
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
            f"--only {listed(sweep.only)}: no row or column has it. Labels: {listed(labels, 30)}."
        )
    return cells


def _selected(row: str, column: str, only: Sequence[str]) -> bool:
    return not only or any(t.casefold() in label.casefold() for t in only for label in (row, column))


def _cell(experiment: Experiment, row: Row, column: Part, sweep: Sweep, selected: bool) -> Cell:
    raw = copy.deepcopy(experiment.base)
    _move_data(raw, experiment, sweep.data)
    settings = {**dict(_flat(row.set)), **dict(_flat(column.set))}
    name = settings.get("method.name")
    if name is not None and name != raw.get("method", {}).get("name", "fedmt"):
        raw["method"] = {}  # the base's options are another method's
    origin = _CellOrigin(experiment.base_path, experiment.base_text)
    for part, kind in ((row, "row"), (column, "column")):
        for key, value in _flat(part.set):
            where = f"{experiment.path}, {kind} '{part.label}': "
            if key == "seed":
                raise FedmtError(f"{where}seed: an experiment's seeds are 0 to N-1; choose N by --seeds.")
            _put(raw, key, value, where)
            origin.places[tuple(key.split("."))] = where
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
            raise FedmtError("--set seed: an experiment's seeds are 0 to N-1; choose N by --seeds.")
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
    """Names the row, column, scale or --set that a setting came from, else the base config."""

    places: dict[tuple[str, ...], str] = field(default_factory=dict)

    def place(self, *location: int | str) -> str:
        for key, where in reversed(self.places.items()):
            # The second: where a whole table is refused that only this setting brought in.
            if location[: len(key)] == key or (location and key[: len(location)] == location):
                return where
        return super().place(*location)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key: `{"a.b" = 1}` and `{a = {b = 1}}` say the same."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(raw: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Sets a dotted key; None takes it away."""
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
    """The file of --weights whose name begins with the backbone's, as torchvision names them; a single
    file of another name is for every backbone."""
    for file in sweep.weights:
        if not file.is_file():
            raise FedmtError(f"--weights {file}: there is no such file.")
        if file.name.startswith(backbone):
            return file
    named = any(f.name.startswith(("resnet", "mobilenet")) for f in sweep.weights)
    return sweep.weights[0] if len(sweep.weights) == 1 and not named else None


def _move_data(raw: dict[str, Any], experiment: Experiment, data: Path | None) -> None:
    """Paths of the base config into `data` beside the experiments' folder go to --data instead."""
    home = experiment.path.resolve().parent.parent / "data"
    goal = (data or default_data(experiment.path.resolve().parent)).resolve()

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: moved(v) for k, v in value.items()}
        if isinstance(value, list):
            return [moved(v) for v in value]
        if isinstance(value, str) and "/" in value:
            path = (experiment.base_path.parent / value).resolve()
            if path.is_relative_to(home):
                return str(goal / path.relative_to(home))
        return value

    for table in ("benchmark", "reference", "centers", "tests"):
        if table in raw:
            raw[table] = moved(raw[table])


# -- scale and cost ------------------------------------------------------------------------------------


def scale_settings(config: Config, scale: Scale) -> dict[str, Any]:
    """What a scale changes of a checked config; None takes a setting away. The whole rule is here.

    small: one to four minutes a run on one core. tiny: seconds, to see that everything works. A benchmark on
    the bundled images is small as it is written.
    """
    benchmark, training = config.benchmark, config.training
    bundled = benchmark is not None and benchmark.data.source == "fashion_mnist"
    if scale == "full" or (scale == "small" and bundled):
        return {}
    small = scale == "small"
    least = min(training.rounds, 5)
    found: dict[str, Any] = {
        "model.backbone": "small_cnn",
        "model.weights": None,
        "training.rounds": max(training.rounds // 16, least) if small else min(training.rounds, 2),
        "training.local_epochs": min(training.local_epochs, 1),
        "training.reference_epochs": min(training.reference_epochs, 5),
        "training.warmup_epochs": min(training.warmup_epochs, 20 if small else 2),
    }
    tuning = getattr(config.build_method(), "fine_tune_epochs", None)
    if tuning is not None:
        found["method.fine_tune_epochs"] = max(tuning // 5, 1) if small else min(tuning, 2)
    size = config.images.size
    if size is not None:
        found["images.size"] = min(size, 32) if isinstance(size, int) else [min(s, 32) for s in size]
    if benchmark is not None:
        if benchmark.samples is not None:
            found["benchmark.samples"] = max(benchmark.samples // (5 if small else 40), 1)
        elif not small and not bundled:  # as many as there are: a number that is small for any set
            found["benchmark.samples"] = 40
            if benchmark.augment_to:  # it says otherwise how many there are
                found["benchmark.augment_to"] = None
        if benchmark.data.source == "cifar100":
            found["benchmark.subset"] = 4 if small else 2
        if not bundled:
            found["benchmark.test_samples"] = 2000 if small else 200
    return found


def cost(config: Config) -> int | None:
    """Images that a run trains on, each pass counted: centers x samples x epochs x rounds, and the
    reference center's. None where only the data could tell."""
    benchmark, training = config.benchmark, config.training
    if benchmark is None:
        return None
    images, classes = KNOWN_SETS.get(benchmark.data.source, (0, len(config.spaces.get(benchmark.wanted, ()))))
    share = benchmark.reference_share
    if not classes or (share is not None and not images):
        return None
    reference = round(share * images) if share is not None else classes * (benchmark.per_class or 0)
    method = config.build_method()
    passes = training.warmup_epochs + training.rounds * training.reference_epochs
    total = reference * (passes + getattr(method, "fine_tune_epochs", 0))
    if method.federated:
        count = sum(benchmark.spaces.values())
        samples = benchmark.samples or (images - reference) // count
        taking_part = training.participation * (1 - training.dropouts)
        total += round(count * taking_part * samples * training.local_epochs * training.rounds)
    return total
