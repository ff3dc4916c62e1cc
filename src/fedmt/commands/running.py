"""`fedmt run`: trains a run and, with `--baseline`, a second one, and says whether the first is better."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmt.commands.steps import next_step, stopped
from fedmt.config import Config
from fedmt.config.variants import load_variant
from fedmt.core.errors import FedmtError, listed
from fedmt.methods import called
from fedmt.reports.answer import noun
from fedmt.runs.comparison import Comparison, compare
from fedmt.runs.evaluation import read_evaluation
from fedmt.runs.folder import RunFolder
from fedmt.training.progress import Display, make_console, show_accuracy
from fedmt.training.run import Stopped, run


def command_line(
    config: Path,
    out: Path | None,
    resume: bool,
    settings: Sequence[str],
    method: str | None,
    baseline: str | None,
    as_json: bool,
) -> int:
    """Trains what is not trained yet and prints the result. Returns the exit status. settings: as given to
    `--set`."""
    console = make_console(stderr=as_json)
    own, notes = load_variant(config, list(settings), method)
    folder = out or Path("runs") / config.stem
    runs: list[tuple[Config, Path]] = [(own, folder)]
    if baseline is not None:
        other, dropped = load_variant(config, list(settings), method, baseline)
        notes += [note for note in dropped if note not in notes]
        _refuse_a_baseline_that_tells_nothing(own, other, baseline)
        runs.append((other, baseline_folder(folder, baseline)))
    if not resume:
        for _, place in runs:  # check this before the first run is trained, not afterwards
            RunFolder(place).refuse_if_taken()
    for note in notes:
        console.print(f"Note: {note}", soft_wrap=True)
    if resume and not RunFolder(folder).config_file.exists():
        console.print(
            f"Note: {folder} holds no run to continue, so this run begins at round 0.", soft_wrap=True
        )
    summaries: list[dict[str, Any]] = []
    try:
        for chosen, place in runs:
            if summaries:
                console.print(f"Baseline: {baseline}", soft_wrap=True)
            display = Display(console, chosen.method["name"])
            with display.watching():
                summaries.append(run(chosen, place, resume, display))
    except Stopped:
        stopped(console, _again(config, folder, settings, method, baseline, as_json))
        return 130
    comparison = None
    if baseline is not None:
        comparison, summaries[0] = _compared(runs, summaries[0])
    if as_json:
        shown: dict[str, Any] = {"run": str(folder), "summary": summaries[0]}
        if baseline is not None:
            shown["baseline"] = {"run": str(runs[1][1]), "summary": summaries[1]}
        print(json.dumps(shown, indent=2))
        return 0
    for (chosen, _), summary in zip(runs, summaries, strict=True):
        show_accuracy(console, summary, tested=bool(chosen.tests or chosen.benchmark))
    console.print("Run folder: " + ", baseline: ".join(str(place) for _, place in runs), soft_wrap=True)
    if comparison is not None:
        console.print(comparison.verdict.sentence, soft_wrap=True)
    next_step(console, "report", folder)
    return 0


def baseline_folder(folder: Path, baseline: str) -> Path:
    """The folder of the baseline, next to the run: runs/federation-single for runs/federation."""
    plain = re.sub(r"[^\w.-]+", "-", baseline)  # a method of the user's own is "package.module:Name"
    return folder.with_name(f"{folder.name}-{plain}")


def _refuse_a_baseline_that_tells_nothing(own: Config, other: Config, baseline: str) -> None:
    if own.method["name"] == other.method["name"]:
        raise FedmtError(
            f"--baseline {baseline}: the run itself uses this method. Choose another method with --method, "
            "or leave out --baseline."
        )
    # Labels in the wanted space may determine those in another space, but not the other way round.
    if own.benchmark or any(test.space in (None, own.wanted) for test in own.tests):
        return
    spaces = listed(dict.fromkeys(test.space for test in own.tests if test.space is not None))
    only = f"All [[tests]] are labeled in {spaces}. " if own.tests else ""
    raise FedmtError(
        f"--baseline {baseline}: there is nothing to compare the two runs on, because the config has no test "
        f"samples labeled in the wanted space '{own.wanted}'. {only}Add [[tests]] with such samples, or "
        "leave out --baseline."
    )


def _compared(
    runs: Sequence[tuple[Config, Path]], summary: dict[str, Any]
) -> tuple[Comparison, dict[str, Any]]:
    """The comparison of the run with its baseline, and the run's summary. The summary on disk includes the
    comparison too."""
    (own, folder), (other, place) = runs
    found = [read_evaluation(RunFolder(path).evaluation_file) for path in (folder, place)]
    names = called(own.method["name"]), called(other.method["name"])
    if found[0] is None or found[1] is None:
        raise FedmtError(
            f"{folder}, {place}: the evaluation.npz of a run is missing. Run it again with --resume."
        )
    comparison = compare(
        {str(folder): found[0]}, {str(place): found[1]}, names, noun=noun({"input": own.input})
    )
    # Only the name is stored, so that both folders can be moved together.
    summary = {**summary, "comparison": {"baseline": place.name, **comparison.to_json()}}
    RunFolder(folder).write_summary(summary)
    return comparison, summary


def _again(
    config: Path,
    folder: Path,
    settings: Sequence[str],
    method: str | None,
    baseline: str | None,
    as_json: bool,
) -> list[str]:
    """The command that continues the run."""
    words = ["fedmt", "run", str(config), "--out", str(folder), "--resume"]
    for option, value in (("--method", method), ("--baseline", baseline)):
        words += [option, value] if value is not None else []
    for item in settings:
        words += ["--set", item]
    return words + (["--json"] if as_json else [])
