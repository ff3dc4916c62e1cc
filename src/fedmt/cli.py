"""The commands: `init`, `check`, `run`, `report`, `watch`, `predict`, `export`, `reproduce`, `quickstart`."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

import fedmt
from fedmt.config import load_config
from fedmt.data.overlap import overlaps
from fedmt.engines.device import pick_device
from fedmt.errors import FedmtError, listed, nearest
from fedmt.methods import FedMT, Method
from fedmt.progress import Display, headline, make_console
from fedmt.run import Stopped, build_engine, run
from fedmt.runs.folder import RunFolder, refuse_own_files, writing

if TYPE_CHECKING:
    import click  # which newer versions of typer bring as a part of themselves


class Commands(TyperGroup):
    """Names the nearest command, and all, when there is none of the name given."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            ctx.fail(f"No such command '{args[0]}'.{nearest(args[0], known)} Known: {', '.join(known)}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    epilog="Begin with `fedmt quickstart`; with your own data: `fedmt init DATA`, then check, run, report.",
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


@app.command(epilog="Example: fedmt init data/")
def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="It holds a folder, CSV or npz for each center.")
    ] = None,
    center: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="A center by itself; may be repeated.")
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="Test images; may be repeated.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="NAME", help="The center that has the wanted labels.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Where the wanted labels stand in its table, if it has one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("federation.toml"),
    accept_similar: Annotated[
        bool, typer.Option("--accept-similar", help="Use correspondences that rest on similar names.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; take every guess.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Look at the data and write a first federation.toml, with what was guessed in comments."""
    from fedmt.init import command_line

    def ask(question: str, default: str) -> str:
        return str(typer.prompt(question, default=default))

    asking = ask if sys.stdin.isatty() and not yes else None
    command_line(
        folder,
        center or [],
        test or [],
        reference,
        column,
        out,
        accept_similar,
        force,
        make_console(),
        asking,
    )


@app.command(
    "run",
    no_args_is_help=True,
    epilog="Example: fedmt run federation.toml --out runs/first --set training.rounds=20",
)
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
    table = Table(title=f"{summary['method']}, round {summary['rounds']}")
    table.add_column("label space")
    table.add_column("accuracy", justify="right")
    for space, accuracy in headline(summary["accuracy"]).items():
        table.add_row(space, f"{accuracy:.1%}")
    console.print(table)
    console.print(f"Run folder: {folder}", soft_wrap=True)


@app.command(no_args_is_help=True, epilog="Example: fedmt check federation.toml")
def check(config: ConfigArgument, set_: SetOption = None) -> None:
    """Load everything, train nothing: the federation as a table, and every problem named."""
    settings = load_config(config, set_)
    device = pick_device(settings.device)
    remote = {c.name for c in settings.centers if c.source == "remote"}
    federation, notes = settings.build_federation(at_hand=not remote)
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
        missing, samples = "-", f"{len(center):,}"
        if remote and center in federation.centers:
            samples = "elsewhere"
        elif center.space is not None and center.labels is not None:
            found = set(center.labels.tolist())
            names = [c for i, c in enumerate(center.space) if i not in found]
            missing = f"{len(names)}: {listed(names, 3)}" if names else "none"
        table.add_row(center.name, samples, space, missing, role or _correspondence(center, engine.method))
    console.print(table)
    for note in (*notes, *overlaps(federation)):
        console.print(f"Note: {note}", soft_wrap=True)
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


@app.command(no_args_is_help=True, epilog="Example: fedmt report runs/first runs/second --out both.html")
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


@app.command(no_args_is_help=True, epilog="Example: fedmt watch runs/first")
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that goes on.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """The report of a run, live in a browser on this machine while the run goes on; Ctrl-C ends it."""
    from fedmt.watch import watch as serve  # here: the other commands need not wait for it

    serve(run, port, make_console())


@app.command(epilog="Example: fedmt quickstart")
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


@app.command(epilog="Example: fedmt reproduce strategies --scale tiny --seeds 1")
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
    from fedmt.sweeps.reproduce import command_line  # here: the other commands need not wait for it

    if not command_line(name, list_, only, seeds, scale, out, data, weights, set_, jobs, make_console()):
        raise typer.Exit(1)


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or a file of `fedmt export --safetensors`.")
]


@app.command(
    no_args_is_help=True,
    epilog="Example: fedmt predict runs/first scans/ --space triage --out predictions.csv",
)
def predict(
    run: RunArgument,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT…", help="Images, folders of them, or CSVs that name them.")
    ],
    space: Annotated[str | None, typer.Option(help="Label space; by default the wanted one.")] = None,
    top: Annotated[int, typer.Option(min=1, help="So many most probable classes.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="CSV", help="Write every row to this file.")] = None,
    center: Annotated[
        str | None, typer.Option(help="Answer by this center's own matrix or head, not by the mean.")
    ] = None,
    image_column: Annotated[str, typer.Option(help="Of a CSV.")] = "image",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Classes and probabilities of images, in any label space of the federation."""
    from fedmt.model.predicting import command_line

    console = Console(stderr=True, markup=False, highlight=False)
    if not command_line(run, inputs, space, top, out, center, image_column, device, sys.stdout, console):
        raise typer.Exit(1)


@app.command(no_args_is_help=True, epilog="Example: fedmt export runs/first --onnx model.onnx")
def export(
    run: RunArgument,
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pixels to the probabilities of every label space.")
    ] = None,
    safetensors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights; with a model card, as JSON, beside it.")
    ] = None,
) -> None:
    """The model as a file to deploy or to hand on."""
    if onnx is None and safetensors is None:
        raise FedmtError("export: say what to write: --onnx FILE or --safetensors FILE, or both.")
    targets = [target for target in (onnx, safetensors) if target is not None]
    for target in targets:
        refuse_own_files(run, target)
    model = fedmt.load(run, "cpu")
    for target in targets:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
    console = make_console()
    if safetensors is not None:
        from fedmt.export.safetensors import export_safetensors

        card = export_safetensors(model, run, safetensors)
        console.print(f"Weights: {safetensors}\nModel card: {card}", soft_wrap=True)
    if onnx is not None:
        from fedmt.export.onnx import export_onnx

        difference = export_onnx(model, onnx)
        checked = (
            "not compared with PyTorch: onnxruntime is not installed"
            if difference is None
            else f"compared with PyTorch: probabilities differ by at most {difference:.1g}"
        )
        console.print(f"ONNX: {onnx} ({checked})", soft_wrap=True)


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
    except BrokenPipeError:  # whoever read the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a file or folder that may not be read or written, a full disk
        place = f"{error.filename}: " if error.filename else ""
        print(f"fedmt: {place}{error.strerror or error}.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
