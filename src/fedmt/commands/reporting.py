"""The commands that show the results of runs: `report`, `watch` and `compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedmt.commands.arguments import METRICS, AllowOption, JsonOption, one_of


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page; by default the run's name.")] = None,
    with_images: Annotated[
        bool,
        typer.Option("--with-images", help="Show the test images of the most confident mistakes."),
    ] = False,
    notice: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Notice about the use of the model, at the top of the page."),
    ] = None,
    allow: AllowOption = None,
) -> None:
    """Write one HTML page about a run, or a comparison of several. It opens from disk, without a network."""
    from fedmt.commands.steps import SAMPLES, next_step
    from fedmt.core.registry import importing_only
    from fedmt.reports.provenance import NOTICE
    from fedmt.reports.report import report as write_report
    from fedmt.training.progress import make_console

    with importing_only(allow or ()):  # a run folder may be somebody else's
        asked = _command(runs, out, title, with_images, notice)
        said = NOTICE if notice is None else notice
        best = write_report(runs, out, title, with_images, notice=said, command=asked)
    console = make_console()
    console.print(f"Report: {out}", soft_wrap=True)
    next_step(console, "predict", best, SAMPLES)


def _command(
    runs: Sequence[Path], out: Path, title: str | None, with_images: bool, notice: str | None
) -> str:
    """The command that makes the page again; the page states it."""
    words = ["fedmt", "report", *map(str, runs), "--out", str(out)]
    words += [] if title is None else ["--title", title]
    words += ["--with-images"] if with_images else []
    return shlex.join(words if notice is None else [*words, "--notice", notice])


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, tested on the same data.")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Run that the others are compared with; by default the first."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show only this metric.", autocompletion=one_of(METRICS)),
    ] = None,
    json: JsonOption = False,
    allow: AllowOption = None,
) -> None:
    """Show the difference between runs in every metric, with 95% intervals over the shared test samples."""
    from fedmt.commands.comparing import command_line
    from fedmt.core.registry import importing_only
    from fedmt.training.progress import make_console

    with importing_only(allow or ()):
        command_line(runs, baseline, metric, json, make_console())


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that is in progress.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any free one.")] = 0,
    allow: AllowOption = None,
) -> None:
    """Show the report of a run that is in progress, live in a browser on this machine. Ctrl-C ends it."""
    from fedmt.core.registry import importing_only
    from fedmt.reports.watch import watch as serve
    from fedmt.training.progress import make_console

    with importing_only(allow or ()):
        serve(run, port, make_console())
