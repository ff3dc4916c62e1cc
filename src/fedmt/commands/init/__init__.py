"""`fedmt init`: a first federation.toml from the data itself (docs/guides/your-data.md)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedmt.commands.init.doubts import all_doubts
from fedmt.commands.init.found import Found, LeftOut, label_columns
from fedmt.commands.init.looking import discover, look_at_any
from fedmt.commands.init.parting import how_to_part, part_by
from fedmt.commands.init.proposing import Plan, accepted, likely_references, propose, why_left_out
from fedmt.commands.init.tables import agreed
from fedmt.commands.init.writing import config_text, statistics_of
from fedmt.commands.schemas import tell_identifiers
from fedmt.commands.steps import next_step
from fedmt.config import load_config
from fedmt.core.errors import FedmtError, listed
from fedmt.inputs.tables import Schema
from fedmt.inputs.tabular import SUFFIXES

Ask = Callable[[str, str], str]
"""Takes a question and its default answer and returns the user's answer. If the default is "", the user must
answer."""


def command_line(
    folder: Path | None,
    centers: Sequence[str],
    tests: Sequence[Path],
    reference: str | None,
    column: str | None,
    out: Path,
    accept_similar: bool,
    force: bool,
    console: Console,
    ask: Ask | None = None,
    by: str | None = None,
) -> Plan:
    """Looks at the data, proposes a federation, asks the user through `ask`, and writes the file. by: if
    `folder` is one table with the rows of all centers, the column to split it by first."""
    if out.is_dir():
        raise FedmtError(f"--out {out} is a folder. Name a file in it, such as {out / 'federation.toml'}.")
    if out.exists() and not force:
        raise FedmtError(f"{out} already exists. Replace it with --force, or give another --out.")
    if folder is None and not centers:
        if ask is None:
            raise FedmtError(
                "init: where is the data? Give the folder that contains a folder or CSV for each center, as "
                "in `fedmt init data/`, or give each center separately with --center NAME=PATH."
            )
        folder = Path(ask("Folder that contains a folder or CSV for each center", "."))
    if by is not None:
        if folder is None:
            raise FedmtError(
                f"--by {by}: which table should be split? Give it, as in `fedmt init all.csv --by {by}`."
            )
        parts = part_by(folder, by, force)
        console.print(f"Split into {parts}: one CSV per center, without the column '{by}'.", soft_wrap=True)
        try:
            return command_line(
                parts, centers, tests, reference, column, out, accept_similar, force, console, ask
            )
        except BaseException:
            shutil.rmtree(parts, ignore_errors=True)  # leave nothing half done
            raise
    if folder is not None and folder.is_file():
        raise FedmtError(
            f"{folder} is not a folder. Give the folder that contains a folder or file for each center. "
            f"{how_to_part(folder)}"
        )
    found, held, left = discover(folder) if folder is not None else ([], [], [])
    found += [_named(text) for text in centers]
    held += [look_at_any(path.stem, path) for path in tests]
    names = [f.name for f in found]
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise FedmtError(
            f"init: several centers are called {listed(twice)}. Give them different names with --center "
            "NAME=PATH."
        )
    _refuse_two_inputs([*found, *held])
    everything = agreed([*found, *held])
    found, held = everything[: len(found)], everything[len(found) :]
    _show([*found, *held], left, console)
    _refuse_one_center(found, folder)
    if ask is not None and reference is None:
        reference = _ask_reference(found, held, ask)
    plan = propose(found, held, reference, column)
    plan = _ask_similar(plan, accept_similar, console, ask)
    if plan.is_table:
        _write_schema(plan, out.with_name("schema.toml"), force, console)
    _write(config_text(plan, out.parent, left), out)
    _tell(plan, out, console)
    return plan


def _ask_reference(found: Sequence[Found], held: Sequence[Found], ask: Ask) -> str:
    likely = [c.name for c in likely_references(found, held)[0]]
    if len(likely) > 1:  # there is no default here, because pressing Enter would be a guess
        tie = f"{listed(likely)} have the same number of classes"
        return ask(f"Reference center (it has the labels you want; {tie})", "")
    return ask("Reference center (it has the labels you want)", likely[0])


def _named(text: str) -> Found:
    """Parses `NAME=PATH`, or a path alone, which then also names the center."""
    name, equals, path = text.partition("=")
    if not equals:
        return look_at_any(Path(text).stem, Path(text))
    if not name.strip() or not path.strip():
        raise FedmtError(f"--center {text}: expected NAME=PATH, as in --center Berlin=data/berlin.csv.")
    return look_at_any(name.strip(), Path(path.strip()).expanduser())


def _refuse_two_inputs(found: Sequence[Found]) -> None:
    names: dict[str, list[str]] = {}
    for one in found:
        names.setdefault(one.word, []).append(one.name)
    if len(names) > 1:
        said = " and ".join(f"{word} at {listed(own)}" for word, own in names.items())
        raise FedmtError(
            f"init: there are {said}, but all centers and tests must have the same kind of data. Select "
            "those that belong together with --center NAME=PATH and --test PATH."
        )
    arrays = {one.array for one in found}
    if len(arrays) > 1:
        raise FedmtError(
            "init: the archives store their vectors under different names: "
            f"{listed(sorted(map(str, arrays)))}. Save them all under one name, such as 'vectors'."
        )


def _refuse_one_center(found: Sequence[Found], folder: Path | None) -> None:
    """The error for a single center. This happens easily when the folder of one center is given instead of
    its parent."""
    if len(found) == 1 and label_columns(found[0]):
        more = "add it with another --center NAME=PATH."
        if folder is not None:
            more = (
                f"put its folder, CSV or npz into {folder}, or {more} If {folder} is itself one center, give "
                "its parent folder."
            )
        path = found[0].path
        parts = f"{how_to_part(path)} " if path.suffix.lower() in SUFFIXES else ""
        raise FedmtError(
            f"init: '{found[0].name}' is the only center, so it is the reference center. At least one more "
            f"center is needed: {more} {parts}To try methods on a single labeled set, split it with "
            "[benchmark]. See docs/guides/your-data.md."
        )
    # Folders that contain only images may be the classes of one center, or centers without labels.
    plain = [f for f in found if f.source == "folder" and not f.columns and not f.notes]
    if folder is not None and plain and plain == [f for f in found if f.path.parent == folder] == found:
        raise FedmtError(
            f"{folder} looks like a single center with the classes {listed(f.name for f in found)}. Give "
            f"its parent folder ({folder.resolve().parent}), or --center NAME=PATH for each center. If these "
            "folders are centers, none of them has labels: the reference center needs a folder for each "
            "class, or a CSV with a column of labels."
        )


def _ask_similar(plan: Plan, accept: bool, console: Console, ask: Ask | None) -> Plan:
    """Correspondences based on similar names are used only if the user confirms them."""
    open_ones = [s for s, p in plan.correspondences.items() if p.usable and not p.certain]
    if accept:
        return accepted(plan, open_ones)
    if ask is None:
        return plan
    yes = []
    for space in open_ones:
        for name, entry in plan.correspondences[space].entries.items():
            console.print(f"  {name} -> {', '.join(entry.shares) if entry else '?'}")
        if ask(f"Does '{plan.wanted}' correspond to '{space}' like this? (y/n)", "n").lower().startswith("y"):
            yes.append(space)
    return accepted(plan, yes)


def _write(text: str, out: Path) -> None:
    """Checks the text before the file is replaced, because a file that cannot be read back would help
    nobody."""
    _write_whole(out, text, load_config)


def _write_whole(out: Path, text: str, check: Callable[[Path], object] = lambda path: None) -> None:
    temporary = out.with_name(out.name + ".tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        check(temporary)
        temporary.replace(out)
    except OSError as error:
        raise FedmtError(f"{out}: cannot be written ({error.strerror or error}).") from None
    finally:
        temporary.unlink(missing_ok=True)


def _write_schema(plan: Plan, path: Path, force: bool, console: Console) -> None:
    if path.exists() and not force:
        raise FedmtError(f"{path} already exists. Replace it with --force, or give another --out.")
    parts = statistics_of(plan)
    schema = Schema.pooled(parts)  # tables that do not fit together are reported before anything is written
    rows = sum(part.rows for part in parts)
    _write_whole(
        path, schema.to_toml(f"Pooled from the statistics of {len(parts)} centers: {rows:,} rows in total.")
    )
    for kind in ("numeric", "categorical"):
        names = [column.name for column in schema.columns if column.type == kind]
        if names:
            console.print(f"{kind.capitalize()} columns: {listed(names, 20)}.", soft_wrap=True)
    members = (plan.reference, *plan.centers)
    tell_identifiers(parts, console, dict.fromkeys(t for m in members for t in m.found.identifiers))
    console.print(
        f"Wrote {path}, which says how rows become vectors. Correct anything that was misread.",
        soft_wrap=True,
    )


def _show(found: Sequence[Found], left: Sequence[LeftOut], console: Console) -> None:
    table = Table(title="Found")
    word = found[0].word if found else "images"
    for name in ("name", "as", word, "labels"):
        table.add_column(name, justify="right" if name == word else "left")
    for one in found:
        unnamed = "folders" if one.source == "folder" else "labels"
        labels = "; ".join(
            f"{column or unnamed} ({len(one.classes(column))} classes)" for column in label_columns(one)
        )
        if one.group_column is not None:
            labels = f"{labels or 'none'}; grouped by {one.group_column}"
        table.add_row(one.name, one.source, f"{one.images:,}", labels or "none")
    console.print(table)
    for passed in left:
        console.print(f"Note: {passed}", soft_wrap=True)


def _tell(plan: Plan, out: Path, console: Console) -> None:
    console.print(
        f"Wanted: '{plan.wanted}' ({len(plan.spaces[plan.wanted])} classes), the labels of center "
        f"'{plan.reference.found.name}' ({plan.reason}).",
        soft_wrap=True,
    )
    for space, proposal in plan.correspondences.items():
        how = "proposed. Check it in the file"
        if not proposal.certain:
            how = (
                "will be estimated. If you know it, fill in its table in the file, because a known "
                "correspondence is better"
            )
            if proposal.usable:
                how += ". --accept-similar uses what similar names suggest"
        console.print(f"Correspondence with '{space}': {how}.", soft_wrap=True)
    for note in all_doubts(plan.spaces):
        console.print(f"Note: {note}.", soft_wrap=True)
    for member in (plan.reference, *plan.centers, *plan.tests):
        for note in member.found.notes:
            console.print(f"Note: {member.found.name}: {note}.", soft_wrap=True)
    for test in plan.tests:
        if test.space is None:
            console.print(
                f"Note: {test.found.name}: {why_left_out(test.found, plan.spaces)}.", soft_wrap=True
            )
    console.print(f"Wrote {out}. Read it before you run it.", soft_wrap=True)
    next_step(console, "check", out)
