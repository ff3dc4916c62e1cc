"""An experiment: a config, swept over rows and columns, and the figures that the paper prints beside.

This file finds and reads `experiments/NAME.toml`; expansion.py makes runs of it. docs/reproduce.md describes
the format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedmt.config import read_toml
from fedmt.config.errors import Origin, explain
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.section import Section
from fedmt.metrics import METRICS

Figure = float | tuple[float] | tuple[float, float]
"""What the paper prints: a mean, or a mean and a standard deviation."""


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
    """A whole experiment file. set: settings of every cell, by dotted key, before its row's and column's.

    metric: shown in the wanted label space, before those of `show`, which name a label space themselves.
    """

    title: str = Field(min_length=1)
    paper: str | None = None
    config: Path
    set: dict[str, Any] = Field(default_factory=dict)
    metric: str | None = None
    show: list[str] = Field(default_factory=list)
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


# -- finding and reading -------------------------------------------------------------------------------


def experiments_folder() -> Path:
    """The shipped experiments: inside an installed package, or beside `src` in a source tree."""
    here = Path(__file__).resolve().parents[2]
    packaged = here / "experiments"
    return packaged if packaged.is_dir() else here.parents[1] / "experiments"


def default_data(folder: Path) -> Path:
    """`data` beside the experiments; in the current folder where they are part of an installed package."""
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
    base_path = (path.parent / file.config).resolve()
    if not base_path.is_file():
        raise FedmtError(f"{origin.place('config')}config: there is no file {base_path}.")
    base, base_text = read_toml(base_path)
    if file.metric is not None:
        file = file.model_copy(update={"show": _shown(file, base, base_path, origin)})
    elif not file.show:
        raise FedmtError(
            f"{origin.place('show')}show: name a metric here, or give one as `metric` (docs/reproduce.md)."
        )
    _check_labels(file, origin)
    return Experiment(path.stem, path, file, base_path, base, base_text)


def _shown(file: ExperimentFile, base: dict[str, Any], base_path: Path, origin: Origin) -> list[str]:
    """`metric` in the wanted space, then what `show` lists."""
    assert file.metric is not None
    metric = METRICS.find(file.metric, f"{origin.place('metric')}metric")
    if metric.function is None:
        raise FedmtError(
            f"{origin.place('metric')}metric: '{metric.name}' has values by class only, and a table shows "
            "one per run."
        )
    changed = file.set.get("wanted") or file.set.get("benchmark.wanted")
    wanted = changed or base.get("wanted") or base.get("benchmark", {}).get("wanted")
    if not wanted:
        raise FedmtError(f"{base_path} does not name a wanted label space for `metric` to be shown in.")
    return list(dict.fromkeys([f"{metric.name}.{wanted}", *file.show]))


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
