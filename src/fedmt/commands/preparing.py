"""Before a run: `init`, `schema` and `check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmt.commands.arguments import ConfigArgument, SetOption

if TYPE_CHECKING:
    from rich.table import Table

    from fedmt.config import Config
    from fedmt.data.center import Federation
    from fedmt.data.member import Member
    from fedmt.engines.local import LocalEngine
    from fedmt.methods import Method


def init(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Folder with one folder, CSV, Parquet or npz file per center."),
    ] = None,
    center: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="One center and its data; may be repeated.")
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="A test set. May be repeated.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="NAME", help="The center that has the wanted labels.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column with the wanted labels, in the reference center's table.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="FOLDER is one table of all centers. Split it by this column."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("federation.toml"),
    accept_similar: Annotated[
        bool,
        typer.Option(
            "--accept-similar", help="Use correspondences that were guessed from similar class names."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask no questions and accept every guess.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Look at the data and write a first federation.toml. Comments in it name every guess."""
    from fedmt.commands.init import command_line
    from fedmt.training.progress import make_console

    def ask(question: str, default: str) -> str:
        return str(typer.prompt(question, default=default or None))

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
        by,
    )


def schema(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…",
            help="A config. With --statistics: a table. With --pool: the centers' statistics.",
        ),
    ],
    statistics: Annotated[
        bool,
        typer.Option("--statistics", help="For a center: write only the statistics of its table, as JSON."),
    ] = False,
    pool: Annotated[
        bool,
        typer.Option("--pool", help="For the coordinator: make the schema from all centers' statistics."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write. By default, tables.schema from the config."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column that is not a feature; may be repeated."),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column whose numbers are codes; may be repeated."),
    ] = None,
    label_column: Annotated[
        str, typer.Option(help="With --statistics, the column that holds the labels.")
    ] = "label",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Make the schema of tables (means, deviations, categories) from statistics, without sharing rows."""
    from fedmt.commands.schemas import command_line
    from fedmt.training.progress import make_console

    command_line(
        paths, statistics, pool, out, ignore or [], categorical or [], label_column, force, make_console()
    )


def check(
    config: ConfigArgument,
    set_: SetOption = None,
    federation_: Annotated[
        Path | None,
        typer.Option(
            "--federation",
            metavar="FILE",
            help="If CONFIG.toml is a center's own center.toml: a copy of the coordinator's config to "
            "compare it with.",
        ),
    ] = None,
) -> None:
    """Load everything without training. Print the federation as a table, and name every problem.

    A center on its own machine can check its center.toml in this way.
    """
    from rich.progress import TimeRemainingColumn

    from fedmt.commands.steps import next_step
    from fedmt.config import build_federation, center_keys, freeze, load_config
    from fedmt.core.errors import FedmtError
    from fedmt.data.overlap import overlaps
    from fedmt.engines.budget import privacy_notes
    from fedmt.engines.device import pick_device
    from fedmt.training.progress import Live, make_console
    from fedmt.training.run import build_engine

    if _is_center(config):
        if set_:
            raise FedmtError(f"{config}: --set is for the coordinator's config, and this is a center's file.")
        return _check_center(config, federation_)
    if federation_ is not None:
        raise FedmtError(f"{config}: --federation is only for a center's own center.toml.")
    settings = load_config(config, set_)
    device = pick_device(settings.device)
    remote = {c.name for c in settings.centers if c.source == "remote"}
    console = make_console()
    with Live(console, TimeRemainingColumn()).showing():
        federation, notes = build_federation(settings, at_hand=not remote)
    # With a frozen backbone, the reference center's features show how the config will be adapted.
    engine = build_engine(settings, freeze(settings, federation, device, reference_only=True), device)
    rows: list[tuple[Member, str]] = [(federation.reference, "reference center")]
    rows += [(c, _correspondence(c, engine.method)) for c in federation.roster.members]
    rows += [(t, "test") for t in federation.tests]
    wanted = federation.wanted
    console.print(_table(f"{config}: wanted space '{wanted.name}' ({len(wanted)} classes)", rows))
    if remote:
        try:
            center_keys(settings, [m.name for m in federation.roster.members])
        except FedmtError as error:
            notes = (*notes, str(error))
    for note in (*notes, *privacy_notes(engine.method, federation.centers), *overlaps(federation)):
        console.print(f"Note: {note}", soft_wrap=True)
    console.print(_summary(settings, federation, engine))
    console.print(_steps(engine.method, federation))
    if not federation.tests:
        console.print("Note: there are no [[tests]], so no accuracy will be reported.")
    changed = [word for item in set_ or [] for word in ("--set", item)]
    if not remote:
        next_step(console, "run", config, *changed, *_baseline(federation, engine.method))


def _is_center(path: Path) -> bool:
    """Whether a file is a center's own center.toml. Only such a file names a state folder."""
    from fedmt.config import read_toml

    return "state" in read_toml(path)[0]


def _check_center(path: Path, federation: Path | None) -> None:
    """A center's own file and its data, on its own machine."""
    from rich.progress import TimeRemainingColumn

    from fedmt.core.errors import FedmtError
    from fedmt.training.progress import Live, make_console

    try:
        from fedmt.engines.flower.beforehand import check_center
    except ModuleNotFoundError as error:
        raise FedmtError(
            f"{path}: this is a center's file, and checking it needs {error.name}; install the extra: pip "
            "install 'fedmt[flower]'."
        ) from None
    console = make_console()
    with Live(console, TimeRemainingColumn()).showing():
        checked = check_center(path, federation)
    name, center = checked.file.name, checked.center
    if center is None:
        console.print(
            f"{path}: the file of center '{name}' has no mistake. Its data were not read, because the "
            "coordinator's config says how. Pass a copy of it with --federation.",
            soft_wrap=True,
        )
        return
    role = "-" if checked.method is None else _correspondence(center, checked.method)
    console.print(_table(f"{path}, compared with {federation or checked.file.federation}", [(center, role)]))
    for note in checked.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    console.print("Everything fits. Nothing was trained, and nothing was sent.")


def _table(title: str, rows: Sequence[tuple[Member, str]]) -> Table:
    """rows: each center or test set, and what is known about its correspondence."""
    from rich.table import Table

    from fedmt.core.errors import listed
    from fedmt.data.center import Center

    table = Table(title=title)
    for column in ("center", "samples", "label space", "classes missing", "correspondence"):
        table.add_column(column, justify="right" if column == "samples" else "left")
    for member, role in rows:
        space = f"{member.space.name} ({len(member.space)})" if member.space else "no labels"
        missing, samples = "-", f"{member.size:,}" if member.size is not None else "elsewhere"
        if isinstance(member, Center) and member.space is not None and member.labels is not None:
            found = set(member.labels.tolist())
            names = [c for i, c in enumerate(member.space) if i not in found]
            missing = f"{len(names)}: {listed(names, 3)}" if names else "none"
        table.add_row(member.name, samples, space, missing, role)
    return table


def _summary(settings: Config, federation: Federation, engine: LocalEngine) -> str:
    """The samples, the network, the method and the device of a run."""
    input, spec, method = federation.input, settings.model, engine.method
    shape, parameters = " x ".join(map(str, input.shape)), sum(p.numel() for p in engine.model.parameters())
    network = f"{spec.backbone}, {parameters / 1e6:.2f} M parameters"
    if spec.freeze is not None:
        features = engine.federation.input.shape[0]
        head = f"head {spec.head} with {parameters:,} parameters"
        network = f"{spec.backbone} (frozen, {features:,} features), {head}"
    averaging = f" with {engine.strategy.name}" if method.schedule.centers_train else ""
    return (
        f"{input.word.capitalize()}s {shape}; {network}; method {method.name}{averaging}, "
        f"{settings.training.rounds} rounds on {engine.device}. Nothing was trained."
    )


def _steps(method: Method, federation: Federation) -> str:
    """The batches and learning rates of a run, whose defaults follow from the data and the config."""
    import numpy as np

    training, schedule, word = method.training, method.schedule, federation.input.word
    said = []
    if schedule.centers_train:
        batch = f"{training.batch_size} {word}s per step"
        fewer = any(m.size is not None and m.size < training.batch_size for m in federation.roster.members)
        if method.privacy is not None:
            batch = f"{'up to ' if fewer else ''}{batch} on average"
        elif fewer:
            batch += " (with repeats, at a center that has fewer)"
        said.append(f"Centers train on {batch} at a learning rate of {training.rate(1):g} in round 1.")
    reference, own = federation.reference, dict[str, list[str]]()
    for round in _reference_rounds(method):
        # The method itself is asked, because it decides how the reference center trains.
        work = method.reference_work(reference, round, np.random.default_rng(0))
        if work is not None:
            size = work.steps["index"].shape[-1]
            repeats = f" (with repeats, because it has {len(reference)})" if size > len(reference) else ""
            batch = f"on {size} {word}s per step{repeats} at a learning rate of {work.learning_rate:g}"
            later = "after the last round" if schedule.keeps_shared_model else f"in round {round}"
            own.setdefault(batch, []).append(later if round else "in the warm-up")
    if own:
        steps = ", and ".join(f"{batch} {' and '.join(when)}" for batch, when in own.items())
        said.append(f"The reference center trains {steps}.")
    return "\n".join(said)


def _reference_rounds(method: Method) -> list[int]:
    """The first rounds in which the reference center trains: the warm-up, and the first one after it."""
    schedule, last = method.schedule, method.training.rounds
    trains = [r for r in range(last + 1) if schedule.reference_trains_after(r, last)]
    later = [1] if schedule.reference_counts_in_mean else [r for r in trains if r > 0]
    return [r for r in trains if r == 0] + later[:1]


def _baseline(federation: Federation, method: Method) -> list[str]:
    """Suggests a baseline, because a run means more next to what the reference center can do alone. Two runs
    are compared on test samples in the wanted space."""
    comparable = any(test.space == federation.wanted for test in federation.tests)
    return ["--baseline", "single"] if comparable and method.name != "single" else []


def _correspondence(center: Member, method: Method) -> str:
    """What is known about a center's correspondence, and what the method does with it."""
    from fedmt.methods import FedMT

    known = center.correspondence
    if center.space is None:
        return "-"
    if center.labels_as_wanted:
        return "identity"
    estimated = isinstance(method, FedMT) and (known is None or method.correspondence == "estimated")
    kind = "unknown" if known is None else "known, " + ("partition" if known.is_partition else "overlapping")
    return f"{kind}; to be estimated" if estimated else kind
