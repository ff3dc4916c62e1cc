"""The command line: `fedmt run`, `check`, `report`, `watch`, `quickstart`, `reproduce`."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import fedmt
from fedmt.config import load_config
from fedmt.engines.device import pick_device
from fedmt.errors import FedmtError, listed
from fedmt.methods import FedMT, Method
from fedmt.progress import Display, headline, make_console
from fedmt.run import Stopped, build_engine, run

app = typer.Typer(
    help="Federated learning between centers that label differently: one model in the label space you want.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The federation and how to train.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
]


@app.command("run")
def run_command(
    config: ConfigArgument,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/<config's name>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    set_: SetOption = None,
) -> None:
    """Train: progress, metrics and checkpoints go to the run folder."""
    settings = load_config(config, set_)
    folder = out or Path("runs") / config.stem
    console = make_console()
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
    table = Table(title=f"{summary['method']}, round {summary['rounds']}")
    table.add_column("label space")
    table.add_column("accuracy", justify="right")
    for space, accuracy in headline(summary["accuracy"]).items():
        table.add_row(space, f"{accuracy:.1%}")
    console.print(table)
    console.print(f"Run folder: {folder}", soft_wrap=True)


@app.command()
def check(config: ConfigArgument, set_: SetOption = None) -> None:
    """Load everything, train nothing: the federation as a table, and every problem named."""
    settings = load_config(config, set_)
    device = pick_device(settings.device)
    federation, notes = settings.build_federation()
    engine = build_engine(settings, federation, device)
    console = make_console()
    table = Table(
        title=f"{config}: wanted space '{federation.wanted.name}' ({len(federation.wanted)} classes)"
    )
    for column in ("center", "samples", "label space", "classes missing", "correspondence"):
        table.add_column(column, justify="right" if column == "samples" else "left")
    rows = [(federation.reference, "reference center")]
    rows += [(c, "") for c in federation.centers] + [(t, "test") for t in federation.tests]
    for center, role in rows:
        space = f"{center.space.name} ({len(center.space)})" if center.space else "no labels"
        missing = "-"
        if center.space is not None and center.labels is not None:
            found = set(center.labels.tolist())
            names = [c for i, c in enumerate(center.space) if i not in found]
            missing = f"{len(names)}: {listed(names, 3)}" if names else "none"
        table.add_row(
            center.name, f"{len(center):,}", space, missing, role or _correspondence(center, engine.method)
        )
    console.print(table)
    for note in notes:
        console.print(f"Note: {note}")
    parameters = sum(p.numel() for p in engine.model.parameters())
    shape = " x ".join(map(str, federation.image_shape))
    averaging = f" with {engine.strategy.name}" if engine.method.federated else ""
    console.print(
        f"Images {shape}; {settings.model.backbone}, {parameters / 1e6:.2f} M parameters; method "
        f"{engine.method.name}{averaging}, {settings.training.rounds} rounds on {device}. "
        "Nothing was trained."
    )
    if not federation.tests:
        console.print("Note: no [[tests]], so no accuracy will be reported.")


@app.command()
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
    from fedmt.report import report as write_report  # here: the other commands need not wait for it

    write_report(runs, out, title, with_images)
    make_console().print(f"Report: {out}", soft_wrap=True)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that goes on.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """The report of a run, live in a browser on this machine while the run goes on; Ctrl-C ends it."""
    from fedmt.watch import watch as serve  # here: the other commands need not wait for it

    serve(run, port, make_console())


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the report.")] = Path(
        "quickstart"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Everything random follows from it.")] = 0,
) -> None:
    """Bundled images, a few minutes on a laptop: Single, FedMT (T) and FedMT (E), a table and a report."""
    # Here, not above: the other commands need not wait for it.
    from fedmt.quickstart import quickstart as run_quickstart

    run_quickstart(out, seed, make_console())


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An experiment's name, or a TOML file of your own.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments; run nothing.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Only cells whose row or column has it in its label; may be repeated."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell, with seeds 0 to N-1.")] = 3,
    scale: Annotated[str, typer.Option(help="full, small (minutes a run) or tiny (seconds).")] = "full",
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
    from fedmt.reproduce import command_line  # here: the other commands need not wait for it

    if not command_line(name, list_, only, seeds, scale, out, data, weights, set_, jobs, make_console()):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fedmt {fedmt.__version__}")
        raise typer.Exit


def _correspondence(center: fedmt.Center, method: Method) -> str:
    """What is known of a center's correspondence, and what the method does about it."""
    known = center.correspondence
    if center.space is None:
        return "-"
    if known is not None and known.coarse == known.fine:
        return "identity"
    estimated = isinstance(method, FedMT) and (known is None or method.correspondence == "estimated")
    kind = "unknown" if known is None else "known, " + ("partition" if known.is_partition else "overlapping")
    return f"{kind}; to be estimated" if estimated else kind


def main() -> None:
    """Entry point: a user's mistake ends in its message and status 2, without a traceback."""
    warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=sys.stderr)
    try:
        app()
    except FedmtError as error:
        print(f"fedmt: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
