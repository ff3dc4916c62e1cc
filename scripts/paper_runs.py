"""Converts the run folders behind docs/results/paper.md to small raw files, and reads raw files as runs.

    python scripts/paper_runs.py reproduced/runs [docs/results/data/paper]

The command writes a JSON file for each run folder, with its settings, versions, seconds, and the measurements
after each round. A stopped run is kept too, and is marked as stopped. Two runs are the same if their settings
are the same, no matter where their data and weights were. This is how a cell of an experiment finds its runs,
and why a cell whose settings have changed since then says "not run".
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory
from typing import Any

from fedmt.commands.sweeps.expansion import Cell, Sweep, expand
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.commands.sweeps.figures import metric_of
from fedmt.config import Config, load_config, parse_config
from fedmt.config.dumping import resolved
from fedmt.runs.folder import RunFolder
from fedmt.runs.records import read_record

DATA = Path(__file__).resolve().parent.parent / "docs" / "results" / "data"
FOLDER, EARLIER = DATA / "paper", DATA / "cifar100"
PRINTED = "printed.json"
"""The paper's figures, stored in the folder of the raw files."""

MEASURES = ("confident_share", "pseudo_label_accuracy", "correspondence_error")
NO_MATTER = (
    "seed",
    "preset",
    "device",
    "precision",
    "checkpoint_every",
    "keep_checkpoints",
    "tracking",
    "deployment",
)
"""The seed, and settings that do not change the result or are written out elsewhere, as the preset is."""


@dataclass(frozen=True)
class Measured:
    """A run as stored in its raw file.

    series: by dotted name, a value for each round from 0 on, or None if missing. Shares are from 0 to 1.
    """

    config: Config
    series: Mapping[str, list[float | None]]
    about: Mapping[str, Any]
    file: str

    @property
    def finished(self) -> bool:
        return self.rounds >= self.config.training.rounds

    @property
    def rounds(self) -> int:
        """The number of the last round."""
        return max(map(len, self.series.values())) - 1

    def last(self, metric: str) -> float | None:
        """The value of the last round, with shares in percent."""
        return self.curve(metric).get(self.rounds)

    def curve(self, metric: str) -> dict[int, float]:
        """The values by round, with shares in percent."""
        scale = 1 if metric.startswith("correspondence_error") else 100
        return {r: scale * v for r, v in enumerate(self.series.get(metric, ())) if v is not None}


class Runs:
    """All raw files, indexed by the settings of their runs."""

    def __init__(self, folder: Path = FOLDER, earlier: Path | None = EARLIER) -> None:
        self.all = [read(path) for path in sorted(folder.glob("*.json")) if path.name != PRINTED]
        if earlier is not None:
            self.all += [read_earlier(path) for path in sorted(earlier.glob("*.toml"))]
        self._known: dict[str, list[Measured]] = {}
        for run in sorted(self.all, key=lambda run: run.config.seed):
            self._known.setdefault(identity(run.config), []).append(run)

    def of(self, cell: Cell) -> list[Measured]:
        """The runs of a cell by seed, finished or not."""
        return self._known.get(identity(cell.runs[0].config), []) if cell.runs else []

    def repeated(self) -> list[list[Measured]]:
        """Finished runs that share their settings and seed with another one."""
        by_seed: dict[tuple[str, int], list[Measured]] = {}
        for key, runs in self._known.items():
            for run in runs:
                if run.finished:
                    by_seed.setdefault((key, run.config.seed), []).append(run)
        return [runs for runs in by_seed.values() if len(runs) > 1]


def identity(config: Config) -> str:
    """A short name for everything that determines a run's result except the seed, without file locations."""
    plain = resolved(config)
    for key in NO_MATTER:
        plain.pop(key, None)
    for source in (plain["benchmark"]["data"], plain["benchmark"].get("test", {})):
        for key in ("path", "root", "labels"):
            source.pop(key, None)
    plain["model"]["weights"] = bool(plain["model"].get("weights"))
    text = json.dumps(plain, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def cells_of(name: str) -> list[Cell]:
    """The cells of a shipped experiment with one seed, including those from ImageNet weights."""
    with (
        TemporaryDirectory() as folder
    ):  # the files only need to exist, since `identity` does not depend on them
        files = tuple(Path(folder, backbone) for backbone in ("resnet18", "mobilenet_v2", "resnet50"))
        for file in files:
            file.touch()
        return expand(read_experiment(known_experiments()[name]), Sweep(seeds=1, weights=files))


# -- files ---------------------------------------------------------------------------------------------


def read(path: Path) -> Measured:
    """Reads a raw file."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Measured(parse_config(raw.pop("settings")), raw.pop("series"), raw, path.name)


def read_earlier(path: Path) -> Measured:
    """Reads a run of docs/results/data/cifar100: its config, and the rounds stored alongside it."""
    records = [read_record(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    return Measured(load_config(path), series_of(records), {}, path.stem)


def series_of(records: Iterable[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """The part of a run's rounds that is kept."""
    records = list(records)
    spaces = list(records[-1]["accuracy"])
    names = [*(f"accuracy.{space}" for space in spaces), *MEASURES]
    found = {name: [_short(_share(record, name)) for record in records] for name in names}
    found["correspondence_error_sd"] = [_short(_over_centers(record)) for record in records]
    return {name: values for name, values in found.items() if any(v is not None for v in values)}


def _share(record: Mapping[str, Any], name: str) -> float | None:
    value = metric_of(record, name)
    return value if value is None or name == "correspondence_error" else value / 100


def _over_centers(record: Mapping[str, Any]) -> float | None:
    """The standard deviation of the error of M-hat over centers."""
    each = [
        c["correspondence_error"] for c in record.get("centers", {}).values() if "correspondence_error" in c
    ]
    return stdev(each) if len(each) > 1 else None


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def to_json(folder: Path) -> tuple[str, str]:
    """The name and the content of the raw file for a run folder."""
    run = RunFolder(folder)
    config = load_config(run.config_file)
    summary = run.summary() or {}
    settings = resolved(config)
    settings["benchmark"]["data"]["path"] = Path(settings["benchmark"]["data"].get("path", "")).name
    if config.model.weights is not None:
        settings["model"]["weights"] = config.model.weights.name
    records = run.metrics()
    day = date.fromtimestamp(run.metrics_file.stat().st_mtime).isoformat()
    about = {
        "date": day,
        "seconds": round(sum(r.get("seconds", {}).get("total", 0.0) for r in records), 1),
        "device": summary.get("device"),
        "versions": summary.get("versions"),
    }
    lines = [f' "{key}": {json.dumps(value)},' for key, value in about.items()]
    lines += [f' "settings": {json.dumps(settings)},', ' "series": {']
    series = [f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in series_of(records).items()]
    lines += [",\n".join(series), " }"]
    return _name(config), "\n".join(["{", *lines, "}", ""])


def _name(config: Config) -> str:
    """A name that a reader can search for, ending in a short name for all other settings."""
    assert config.benchmark is not None
    method = config.method["name"]
    if config.method.get("correspondence") == "estimated":
        method += "-e"
    share, images = config.benchmark.reference_share, config.benchmark.per_class
    few = f"share{share}" if share is not None else f"n{images}"
    start = "-imagenet" if config.model.weights is not None else ""
    return f"{config.benchmark.data.source}-{method}{start}-{few}-seed{config.seed}-{identity(config)}"


def main(runs: Path, out: Path = FOLDER) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for folder in sorted(path.parent for path in runs.glob("**/metrics.jsonl")):
        name, text = to_json(folder)
        place, number = out / f"{name}.json", 1
        # The same settings on another day are a repeat. The same rounds, or more of them, replace the file.
        while place.exists() and not _replaces(text, place.read_text(encoding="utf-8")):
            number += 1
            place = out / f"{name}-repeat-{number}.json"
        place.write_text(text, encoding="utf-8")
        print(place)


def _replaces(text: str, known: str) -> bool:
    new, old = (json.loads(t)["series"]["accuracy." + _wanted(t)] for t in (text, known))
    return bool(new[: len(old)] == old)


def _wanted(text: str) -> str:
    return str(json.loads(text)["settings"]["benchmark"]["wanted"])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
