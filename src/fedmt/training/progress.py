"""What a run shows: a live display on a terminal, or plain lines elsewhere. It also handles Ctrl-C at a safe
point."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedmt.core.progress import heard_by
from fedmt.core.rounding import percent
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.metrics import EVEN_HANDED, HEADLINE, METRICS
from fedmt.training.run import Stopped


class Live:
    """A live display of tasks, each with a note; Ctrl-C is remembered as a request to stop."""

    def __init__(self, console: Console, left: TimeRemainingColumn) -> None:
        self.console = console
        self.stop_asked = False
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            left,
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._reading: TaskID | None = None

    @contextmanager
    def showing(self) -> Iterator[Self]:
        """Within this context, the display is live."""
        with self._progress, heard_by(self._read):
            yield self

    @contextmanager
    def watching(self) -> Iterator[Self]:
        """Within this context, the display is live and Ctrl-C does not interrupt."""
        if threading.current_thread() is not threading.main_thread():  # where Ctrl-C never arrives
            with self.showing():
                yield self
            return
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            with self.showing():
                yield self
        finally:
            signal.signal(signal.SIGINT, previous)

    def _read(self, what: str, done: int, total: int) -> None:
        """A separate bar for reading data, until all is read. It is also a safe point to stop."""
        if self.stop_asked:
            raise Stopped
        if self._reading is None:
            self._reading = self._progress.add_task(what, total=total, note="")
        self._progress.update(
            self._reading, description=what, total=total, completed=done, note=f"{done:,} of {total:,}"
        )
        if done >= total:
            self._progress.remove_task(self._reading)
            self._reading = None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.stop_asked:
            self._stop_at_once()
        self.stop_asked = True
        self.console.print("Stopping at the next safe point; press Ctrl-C again to stop at once.")

    def _stop_at_once(self) -> None:
        """A second Ctrl-C. Files are written atomically, so nothing is lost."""
        raise Stopped


class Display(Live):
    """An `Observer` that shows rounds, centers and time left."""

    def __init__(self, console: Console, title: str, quiet: bool = False) -> None:
        super().__init__(console, TimeRemainingColumn())
        self.title = title
        self.quiet = quiet  # only the bar, without one line per round
        self._task = self._progress.add_task(title, total=None, note="reading the data")

    def started(self, engine: LocalEngine, done: int, notes: tuple[str, ...]) -> None:
        self._rounds = engine.method.training.rounds
        # The bar counts centers, so that its time left is also right within a round.
        self._parts = 1 + (len(engine.federation.centers) if engine.method.schedule.centers_train else 0)
        self._at = (0, 0)
        self._progress.update(self._task, total=self._rounds * self._parts, completed=done * self._parts)
        for note in notes:
            self.console.print(f"Note: {note}")
        if done == self._rounds:
            self.console.print(f"{self.title}: all {done} rounds are already done.")
        elif done:
            self.console.print(f"{self.title}: continuing after round {done} of {self._rounds}.")

    def center(self, round: int, name: str) -> None:
        if self.stop_asked:
            raise Stopped
        before = self._at[1] if self._at[0] == round else 0
        self._at = (round, before + 1)
        stage = f"round {round}/{self._rounds}" if round else "warm-up"
        self._progress.update(
            self._task,
            description=f"{self.title}, {stage}",
            completed=max(round - 1, 0) * self._parts + before if round else 0,
            note=name,
        )

    def round(self, record: Record) -> None:
        self._progress.update(self._task, completed=record["round"] * self._parts)
        if not self.quiet:
            self.console.print(round_line(record, self._rounds), soft_wrap=True)
        if self.stop_asked:
            raise Stopped


def round_line(record: Record, rounds: int) -> str:
    """`round 3/50  fine 41.2%  coarse 70.1%  confident 52% (right 91%)  M-hat error 0.53  4.1 s`."""
    parts = [f"round {record['round']}/{rounds}"]
    parts += _tested(record)
    if "confident_share" in record:
        right = record.get("pseudo_label_accuracy")
        known = f" (right {right:.0%})" if right is not None else ""
        parts.append(f"confident {record['confident_share']:.0%}{known}")
    if "correspondence_error" in record:
        parts.append(f"M-hat error {record['correspondence_error']:.2f}")
    spent = [c["privacy_spent"] for c in record["centers"].values() if "privacy_spent" in c]
    if spent:
        parts.append(f"epsilon {max(spent):.2f}")
    out = [n for n, c in record["centers"].items() if "abstained" in c]
    if out:
        parts.append(f"{len(out)} abstained")
    away = [n for n, c in record["centers"].items() if "absent" in c]
    if away:
        parts.append(f"{len(away)} absent")
    broken = [n for n, c in record["centers"].items() if "left_out" in c]
    if broken:
        parts.append(f"left out: {', '.join(broken)}")
    parts.append(f"{record['seconds']['total']:.1f} s")
    return "  ".join(parts)


def _tested(record: Record) -> list[str]:
    """The headline in each label space, and the balanced accuracy if it differs, as it does if some classes
    have more test samples than others."""
    first, second = METRICS[HEADLINE], METRICS[EVEN_HANDED]
    found = []
    for space, value in record[HEADLINE].items():
        text = first.format(value)
        fair = record.get(EVEN_HANDED, {}).get(space)
        if _differ(fair, value):
            text += f" (balanced {second.format(fair)})"
        found.append(f"{space} {text}")
    return found


def _differ(fair: float | None, value: float) -> bool:
    """Whether the balanced accuracy is worth showing next to the accuracy."""
    return fair is not None and abs(fair - value) > 0.0005


def show_accuracy(console: Console, summary: Mapping[str, Any], tested: bool) -> None:
    """A finished run's table of accuracies, or why there is none. tested: the run had test sets."""
    title = f"{summary['method']}, round {summary['rounds']}"
    accuracies = summary[HEADLINE]
    if not accuracies:
        why = (
            "the model cannot answer in the label space of any test set. Add [[tests]] with samples that are "
            "labeled in the wanted space"
            if tested
            else "there is no test set. Add [[tests]] with labeled samples"
        )
        console.print(
            f"{title}: no accuracy was measured, because {why} to the config, and run it again with "
            "another --out.",
            soft_wrap=True,
        )
        return
    table = Table(title=title)
    table.add_column("label space")
    table.add_column("accuracy", justify="right")
    even = {space: found["value"] for space, found in summary.get("metrics", {}).get(EVEN_HANDED, {}).items()}
    shown = any(_differ(value, accuracies[space]) for space, value in even.items() if space in accuracies)
    if shown:  # a verdict rests on it, and may be the opposite of what the accuracies suggest
        table.add_column("balanced", justify="right")
    for space, accuracy in accuracies.items():
        fair = percent(even[space]) if even.get(space) is not None else "-"
        table.add_row(space, percent(accuracy), *([fair] if shown else []))
    console.print(table)


def make_console(stderr: bool = False) -> Console:
    """The console for progress and results; wide enough for plain lines when piped.

    Markup is off, because the name of a center or folder may contain brackets. stderr: for a command whose
    standard output is for a program.
    """
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    return Console(width=width, markup=False, highlight=False, stderr=stderr)
