"""The commands that show the results of runs: `report`, `watch` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmt.commands.arguments import METRICS, AllowOption, JsonOption, one_of


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders. Several runs are compared.")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page. By default, the run's name.")] = None,
    with_images: Annotated[
        bool,
        typer.Option(
            "--with-images", help="Include the test images of the most confident mistakes in the page."
        ),
    ] = False,
    notice: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The notice about intended use at the top of the page.")
    ] = None,
    allow: AllowOption = None,
) -> None:
    """Write one HTML page about a run, or a comparison of several runs. It opens from disk without a
    network."""
    from fedmt.commands.steps import SAMPLES, next_step
    from fedmt.core.registry import importing_only
    from fedmt.reports.provenance import NOTICE
    from fedmt.reports.report import report as write_report
    from fedmt.training.progress import make_console

    with importing_only(allow or ()):  # a run folder may come from somebody else
        write_report(runs, out, title, with_images, notice=NOTICE if notice is None else notice)
    console = make_console()
    console.print(f"Report: {out}", soft_wrap=True)
    next_step(console, "predict", runs[0], SAMPLES)


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, tested on the same data.")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run that the others are compared with. By default, the first."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show only this metric.", autocompletion=one_of(METRICS)),
    ] = None,
    json: JsonOption = False,
    allow: AllowOption = None,
) -> None:
    """Show the difference between runs in every metric, with 95% intervals from the test samples they
    share."""
    from fedmt.commands.comparing import command_line
    from fedmt.core.registry import importing_only
    from fedmt.training.progress import make_console

    with importing_only(allow or ()):
        command_line(runs, baseline, metric, json, make_console())


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run in progress.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on. 0 chooses a free port.")] = 0,
    allow: AllowOption = None,
) -> None:
    """Show the live report of a run in a browser on this machine. Ctrl-C ends it."""
    from fedmt.core.registry import importing_only
    from fedmt.reports.watch import watch as serve
    from fedmt.training.progress import make_console

    with importing_only(allow or ()):
        serve(run, port, make_console())
