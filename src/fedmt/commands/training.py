"""Runs: `run`, `quickstart` and `reproduce`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedmt.commands.arguments import ConfigArgument, SetOption


def run_command(
    config: ConfigArgument,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/<config's name>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    set_: SetOption = None,
) -> None:
    """Train: progress, metrics and checkpoints go to the run folder."""

    from fedmt.config import load_config
    from fedmt.runs.folder import RunFolder
    from fedmt.training.progress import Display, make_console, show_accuracy
    from fedmt.training.run import Stopped, run

    settings = load_config(config, set_)
    folder = out or Path("runs") / config.stem
    console = make_console()
    if resume and not RunFolder(folder).config_file.exists():
        console.print(f"Note: {folder} holds no run to go on with: it begins at round 0.", soft_wrap=True)
    display = Display(console, settings.method["name"])
    try:
        with display.watching():
            summary = run(settings, folder, resume, display)
    except Stopped:
        again = ["fedmt", "run", str(config), "--out", str(folder), "--resume"]
        for item in set_ or []:
            again += ["--set", item]
        console.print(
            f"Stopped; every finished round is saved. Go on with:\n  {shlex.join(again)}", soft_wrap=True
        )
        raise typer.Exit(130) from None
    show_accuracy(console, summary, tested=bool(settings.tests or settings.benchmark))
    console.print(f"Run folder: {folder}", soft_wrap=True)


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the report.")] = Path(
        "quickstart"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Everything random follows from it.")] = 0,
) -> None:
    """Bundled images, a few minutes on a laptop: Single, FedMT (T) and FedMT (E), a table and a report."""
    from fedmt.commands.quickstart import quickstart as run_quickstart
    from fedmt.training.progress import make_console

    run_quickstart(out, seed, make_console())


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An experiment's name, or a TOML file of your own.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments; run nothing.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Only cells that have it in their label, 'column, row'; may be repeated."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell, with seeds 0 to N-1.")] = 3,
    scale: Annotated[str, typer.Option(help="full, small (minutes per run) or tiny (seconds).")] = "full",
    out: Annotated[Path, typer.Option(help="Folder for the runs and tables.")] = Path("reproduced"),
    data: Annotated[
        Path | None, typer.Option(help="Folder with cifar-100-python/ and the like; by default data/.")
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="ImageNet weights (torchvision); may be repeated."),
    ] = None,
    set_: SetOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs side by side; by default by cores.")] = None,
) -> None:
    """A table or figure of the paper, or a sweep of your own: many runs and the table they make."""
    from fedmt.commands.sweeps.reproduce import command_line
    from fedmt.training.progress import make_console

    if not command_line(name, list_, only, seeds, scale, out, data, weights, set_, jobs, make_console()):
        raise typer.Exit(1)
