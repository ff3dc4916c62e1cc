"""What came of a run: `report` and `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="By default the run's name.")] = None,
    with_images: Annotated[
        bool,
        typer.Option("--with-images", help="Put the most confident mistakes into the page, as test images."),
    ] = False,
) -> None:
    """One HTML page of one run, or a comparison of several: opens from disk, needs no network."""
    from fedmt.reports.report import report as write_report
    from fedmt.training.progress import make_console

    write_report(runs, out, title, with_images)
    make_console().print(f"Report: {out}", soft_wrap=True)


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that goes on.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """The report of a run, live in a browser on this machine while the run goes on; Ctrl-C ends it."""
    from fedmt.reports.watch import watch as serve
    from fedmt.training.progress import make_console

    serve(run, port, make_console())
