"""`fedmt predict`: turns many files into rows, one batch at a time. A file that cannot be read becomes a row
with its error."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedmt.commands.steps import SAMPLES
from fedmt.core.errors import FedmtError
from fedmt.inputs.base import Item
from fedmt.models.loaded import Model, Top, best, load
from fedmt.runs.files import is_stream, replaceable, writing
from fedmt.runs.folder import refuse_own_files

SHOWN = 20
"""Number of rows shown on a terminal. All rows go to --out, or through a pipe."""


@dataclass(frozen=True)
class Row:
    """One file: its most probable classes, or why it could not be read."""

    image: str
    top: Top
    error: str = ""


def predict_files(
    model: Model, files: Sequence[Item], space: str, top: int, center: str | None = None
) -> Iterator[Row]:
    """One row per file, in order. Only one batch of files is in memory at a time."""
    for batch in model.input.read(files):
        found: Iterator[Top] = iter(())
        if len(batch.samples):
            found = iter(best(model.scores(batch.samples, space, center), model.classes(space), top))
        for file, error in zip(batch.items, batch.errors, strict=True):
            ranked = next(found) if error is None else []
            if any(isnan(value) for _, value in ranked):
                ranked, error = [], f"{file.where}: no prediction, because its numbers are too large."
            yield Row(file.name, ranked, error or "")


def header(word: str, top: int) -> list[str]:
    """The columns of the CSV."""
    ranks = [f"{what}_{rank}" for rank in range(1, top + 1) for what in ("class", "probability")]
    return [word, "space", *ranks, "error"]


def cells(row: Row, space: str, top: int) -> list[str]:
    """A row of the CSV. If there is an error, the classes are empty."""
    ranked = [cell for name, value in row.top for cell in (name, f"{value:.6f}")]
    return [row.image, space, *ranked, *[""] * (2 * (top - len(row.top))), row.error]


def command_line(
    run: Path,
    inputs: Sequence[Path],
    space: str | None,
    top: int,
    out: Path | None,
    center: str | None,
    column: str | None,
    prior: str | None,
    device: str,
    stdout: IO[str],
    console: Console,
    allow: Sequence[str] = (),
) -> bool:
    """Predicts and writes the rows. Returns whether any file could be read. `console` is for everything
    except the result."""
    model = load(run, device, allow=allow)
    name = space if space is not None else model.spaces[0]
    top = min(top, len(model.classes(name)))  # an unknown space or center is reported before any file is read
    if center is not None:
        model.check_center(name, center)
    if prior is not None:
        model.check_prior(name)
        model = model.answering_for(prior)
    if any(path.name == SAMPLES and not path.exists() for path in inputs):
        raise FedmtError(
            f"{SAMPLES} is a placeholder for your own files. Name the {model.input.word}s to predict."
        )
    notes: list[str] = []
    files = model.input.find(inputs, column, notes)
    if out is not None:
        if out.resolve() in {path.resolve() for path in (*inputs, *(f.path for f in files))}:
            raise FedmtError(f"{out}: --out would overwrite one of the inputs. Give another file.")
        refuse_own_files(run, out)
    count = _Count()
    rows = count.of(_with_bar(predict_files(model, files, name, top, center), len(files), console))
    if out is not None:
        with _replaced(out) as file:
            _write(rows, file, model.input.word, name, top)
    elif stdout.isatty():
        _show(rows, len(files), model, name, top)
    else:
        _write(rows, stdout, model.input.word, name, top)
    for note in notes:
        console.print(f"Note: {note}", soft_wrap=True)
    _tell(model, name, count, len(files), out, console)
    return count.failed < len(files)


class _Count:
    """Counts the rows with an error as they pass, and keeps the first error."""

    failed = 0
    first = ""

    def of(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.error:
                self.failed += 1
                self.first = self.first or row.error
            yield row


def _with_bar(rows: Iterable[Row], total: int, console: Console) -> Iterator[Row]:
    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        for row in rows:
            yield row
            progress.advance(task)


@contextmanager
def _replaced(path: Path) -> Iterator[IO[str]]:
    """A text file that appears only when it is complete. A pipe is written to as it is."""
    with writing(path):
        if is_stream(path):
            with path.open("w", newline="", encoding="utf-8") as file:
                yield file
            return
        path = replaceable(path)
        part = path.with_name(path.name + ".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("w", newline="", encoding="utf-8") as file:
                yield file
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _write(rows: Iterable[Row], file: IO[str], word: str, space: str, top: int) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for number, row in enumerate(rows):
        if not number:  # print nothing before the first file has been read, so that an error is printed alone
            writer.writerow(header(word, top))
        writer.writerow(cells(row, space, top))


def _show(rows: Iterable[Row], total: int, model: Model, space: str, top: int) -> None:
    console = Console(markup=False, highlight=False)
    table = Table(title=f"{space}, {model.description.method['name']} after round {model.round}")
    table.add_column(model.input.word, overflow="fold")
    for rank in range(1, top + 1):
        table.add_column("class" if rank == 1 else f"{rank}.")
    for number, row in enumerate(rows):
        if number >= SHOWN:
            continue
        if row.error:
            table.add_row(row.image, "cannot be read")
        else:
            table.add_row(row.image, *(f"{name} {value:.0%}" for name, value in row.top))
    console.print(table)
    if total > SHOWN:
        console.print(
            f"The first {SHOWN} of {total:,} {model.input.word}s are shown. --out FILE.csv writes all of "
            "them."
        )


def _tell(model: Model, space: str, count: _Count, total: int, out: Path | None, console: Console) -> None:
    if not model.finished:
        console.print(
            f"Note: the run is not finished. This is its model after round {model.round}.", soft_wrap=True
        )
    if model.prior is not None and model.from_wanted(space):
        wanted = model.spaces[0]
        told = "are" if space == wanted else f"follow from those in '{wanted}'"
        console.print(f"Note: the probabilities {told} for {model.prior.words}.", soft_wrap=True)
    if not model.calibrated(space):
        console.print(f"Note: probabilities in '{space}' are not calibrated.", soft_wrap=True)
    if count.failed:
        console.print(
            f"{count.failed:,} of {total:,} {model.input.word}s could not be read. The first error: "
            f"{count.first}",
            soft_wrap=True,
        )
    if out is not None:
        done = total - count.failed
        console.print(f"{done:,} prediction{'' if done == 1 else 's'}: {out}", soft_wrap=True)
