"""Runs: `run`, `quickstart`, `sweep` and `reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmt.commands.arguments import (
    DEVICES,
    METHODS,
    SCALES,
    ConfigArgument,
    JsonOption,
    SetOption,
    one_of,
)


def run_command(
    config: ConfigArgument,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. By default, runs/ and the config's name.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in this folder.")] = False,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Train with this method.", autocompletion=one_of(METHODS)),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Also train this method and compare the two: --baseline single.",
            autocompletion=one_of(METHODS),
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Number that determines everything random.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device to train on: auto, cpu, cuda or cuda:1.", autocompletion=one_of(DEVICES)),
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Train, and write metrics and checkpoints to the run folder."""
    from fedmt.commands.running import command_line

    settings = list(set_ or [])
    for key, value in (("training.rounds", rounds), ("seed", seed), ("device", device)):
        settings += [f"{key}={value}"] if value is not None else []
    status = command_line(config, out, resume, settings, method, baseline, json)
    if status:
        raise typer.Exit(status)


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the report.")] = Path(
        "quickstart"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Number that determines everything random.")] = 0,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer rounds and images, to see in less than a minute that it works."),
    ] = False,
) -> None:
    """Compare Single, FedMT (T) and FedMT (E) on bundled images, in one to two minutes on a laptop."""
    from fedmt.commands.quickstart import quickstart as run_quickstart
    from fedmt.commands.steps import next_step
    from fedmt.training.progress import make_console

    console = make_console()
    run_quickstart(out, seed, console, quick)
    next_step(console, "init", "data/")


ListOption = Annotated[
    bool, typer.Option("--list", help="List the experiments that come with fedmt without running them.")
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="Run only cells whose label, 'column, row', contains this; may be repeated."
    ),
]
SeedsOption = Annotated[int, typer.Option(min=1, help="Number of runs per cell, with seeds 0 to N-1.")]
ScaleOption = Annotated[
    str,
    typer.Option(
        help="Size of the runs: full, small (minutes per run) or tiny (seconds).",
        autocompletion=one_of(SCALES),
    ),
]
OutOption = Annotated[Path, typer.Option(help="Folder for the runs and tables.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder with the data sets, such as cifar-100-python/; by default data/.")
]
WeightsOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="File with ImageNet weights (torchvision). May be repeated."),
]
JobsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of runs at the same time. By default, it depends on the cores."),
]


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.toml", help="Your experiment: a config, rows and columns.")
    ],
    only: OnlyOption = None,
    seeds: SeedsOption = 3,
    scale: ScaleOption = "full",
    out: OutOption = Path("sweeps"),
    data: DataOption = None,
    weights: WeightsOption = None,
    set_: SetOption = None,
    jobs: JobsOption = None,
) -> None:
    """Make many runs from one experiment file, and a table of their results."""
    from fedmt.commands.sweeps.reproduce import command_line
    from fedmt.training.progress import make_console

    console = make_console()
    name = str(file)
    if not command_line("sweep", name, False, only, seeds, scale, out, data, weights, set_, jobs, console):
        raise typer.Exit(1)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of the experiments that come with fedmt.")
    ] = None,
    list_: ListOption = False,
    only: OnlyOption = None,
    seeds: SeedsOption = 3,
    scale: ScaleOption = "full",
    out: OutOption = Path("reproduced"),
    data: DataOption = None,
    weights: WeightsOption = None,
    set_: SetOption = None,
    jobs: JobsOption = None,
) -> None:
    """Run the experiments behind a table or figure of the paper or the documentation, and make the table."""
    from fedmt.commands.sweeps.reproduce import command_line
    from fedmt.training.progress import make_console

    console = make_console()
    if not command_line(
        "reproduce", name, list_, only, seeds, scale, out, data, weights, set_, jobs, console
    ):
        raise typer.Exit(1)
