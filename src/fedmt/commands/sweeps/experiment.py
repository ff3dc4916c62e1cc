"""An experiment: a config swept over rows and columns, together with the figures printed in the paper.

This file finds and reads `experiments/NAME.toml`; expansion.py makes runs of it. docs/guides/sweeps.md
describes the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedmt.commands.sweeps.figures import MEASURES
from fedmt.config import read_toml
from fedmt.config.errors import Origin, explain
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.section import Section
from fedmt.metrics import METRICS

Figure = float | tuple[float] | tuple[float, float]
"""What the paper prints: a mean, or a mean and a standard deviation."""


class Part(Section):
    """What rows and columns have in common.

    set: settings by dotted key. weights: the paper starts these runs from ImageNet weights, so they use the
    file given by `--weights`; without a file, a 'used' run starts from random weights and is marked, and a
    'needed' run is left out.
    """

    label: str = Field(min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    weights: Literal["used", "needed"] | None = None


class Row(Part):
    """A row. paper: figures by column, for the first metric shown; or by metric, then by column.

    config: the config of this row, instead of the file's. cells: settings of single cells, by column, applied
    after all others.
    """

    config: Path | None = None
    cells: dict[str, dict[str, Any]] = Field(default_factory=dict)
    paper: dict[str, Figure | dict[str, Figure]] = Field(default_factory=dict)


class Skip(Section):
    """A cell that makes no sense, and why."""

    row: str
    column: str
    reason: str = Field(min_length=1)


class ExperimentFile(Section):
    """A whole experiment file. set: settings of every cell, by dotted key, applied before those of its row
    and column.

    show: `accuracy.fine` and the like; a metric without a label space is shown in the wanted one.
    baseline: the column that the others are compared with, on the same test samples.
    """

    title: str = Field(min_length=1)
    paper: str | None = None
    config: Path | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    show: list[str] = Field(min_length=1)
    curves: list[str] = Field(default_factory=list)
    note: str | None = None
    baseline: str | None = None
    columns: list[Part] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    skip: list[Skip] = Field(default_factory=list)


@dataclass(frozen=True)
class Base:
    """A swept config, as its file states it."""

    path: Path
    raw: dict[str, Any]
    text: str


@dataclass(frozen=True)
class Experiment:
    """An experiment file, and the config of each of its rows, by their labels."""

    name: str
    path: Path
    file: ExperimentFile
    bases: Mapping[str, Base]

    def paper_figure(self, metric: str, row: str, column: str) -> tuple[float, ...] | None:
        """The figure that the paper prints for a cell, or None."""
        (found,) = [r for r in self.file.rows if r.label == row]
        by_metric = found.paper.get(metric)
        figure = by_metric.get(column) if isinstance(by_metric, dict) else None
        if figure is None and metric == self.file.show[0]:
            flat = found.paper.get(column)
            figure = None if isinstance(flat, dict) else flat
        return (figure,) if isinstance(figure, int | float) else figure


# -- finding and reading -------------------------------------------------------------------------------


def experiments_folder() -> Path:
    """The shipped experiments: inside an installed package, or next to `src` in a source tree."""
    here = Path(__file__).resolve().parents[2]
    packaged = here / "experiments"
    return packaged if packaged.is_dir() else here.parents[1] / "experiments"


def default_data(folder: Path) -> Path:
    """`data` next to the experiments, or in the current folder if the experiments are part of an installed
    package."""
    packaged = folder == Path(__file__).resolve().parents[2] / "experiments"
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
        f"No experiment '{name}'.{nearest(name, known)} Known: {listed(known, 30)}; or give the path of your "
        "own TOML file."
    )


def read_experiment(path: Path) -> Experiment:
    """Reads and checks an experiment file; its cells are checked by `expand`."""
    raw, text = read_toml(path)
    origin = Origin(path, text)
    if "rows" not in raw and raw.keys() & {"benchmark", "reference", "centers"}:
        raise FedmtError(
            f"{path} is one federation, not an experiment: `fedmt run {path}` runs it. An experiment names "
            "it as its config, with [[rows]] and [[columns]] of settings (docs/guides/sweeps.md)."
        )
    try:
        file = ExperimentFile.model_validate(raw)
    except ValidationError as error:
        raise FedmtError(explain(error, ExperimentFile, (), origin)) from None
    _check_labels(file, origin)
    return Experiment(path.stem, path, file, _bases(file, path, origin))


def _bases(file: ExperimentFile, home: Path, origin: Origin) -> dict[str, Base]:
    """The config of each row. A config that several rows share is read once."""
    read: dict[Path, Base] = {}
    found = {}
    for number, row in enumerate(file.rows):
        key = ("rows", number, "config") if row.config is not None else ("config",)
        name = row.config or file.config
        if name is None:
            raise FedmtError(
                f"{origin.place('rows', number)}row '{row.label}': config: missing, both here and at the top "
                "of the file."
            )
        path = (home.parent / name).resolve()
        if path not in read:
            if not path.is_file():
                raise FedmtError(f"{origin.place(*key)}config: the file {path} does not exist.")
            read[path] = Base(path, *read_toml(path))
        found[row.label] = read[path]
    return found


def _check_labels(file: ExperimentFile, origin: Origin) -> None:
    columns, rows = [c.label for c in file.columns], [r.label for r in file.rows]
    for kind, labels in (("columns", columns), ("rows", rows)):
        double = [label for label in labels if labels.count(label) > 1]
        if double:
            raise FedmtError(f"{origin.place(kind)}{kind}: the label '{double[0]}' is used twice.")

    def known(label: str, labels: list[str], where: str) -> None:
        if label not in labels:
            raise FedmtError(f"{where}: no '{label}'.{nearest(label, labels)} Known: {listed(labels, 20)}.")

    if file.baseline is not None:
        known(file.baseline, columns, f"{origin.place('baseline')}baseline")
    for number, metric in enumerate(file.show):
        if metric in METRICS and METRICS[metric].function is None:
            raise FedmtError(
                f"{origin.place('show', number)}show: '{metric}' has values per class only, and a table "
                "shows one value per run."
            )
        if "." not in metric and metric not in METRICS and metric not in MEASURES:
            raise FedmtError(
                f"{origin.place('show', number)}show: no metric '{metric}'.{nearest(metric, METRICS)} Known: "
                f"{listed(METRICS, 30)}."
            )
    for number, row in enumerate(file.rows):
        for column in row.cells:
            known(column, columns, f"{origin.place('rows', number, 'cells')}rows.{number}.cells")
        where = f"{origin.place('rows', number, 'paper')}rows.{number}.paper"
        for key, value in row.paper.items():
            known(key, file.show if isinstance(value, dict) else columns, where)
            for column in value if isinstance(value, dict) else ():
                known(column, columns, where)
    for number, skip in enumerate(file.skip):
        known(skip.row, rows, f"{origin.place('skip', number)}skip.{number}.row")
        known(skip.column, columns, f"{origin.place('skip', number)}skip.{number}.column")
