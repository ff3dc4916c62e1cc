"""What a run shows: one live display on a terminal, plain lines elsewhere; and Ctrl-C at a safe point."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedmt.data.center import Federation
from fedmt.engines.local import Record
from fedmt.run import Stopped


class Display:
    """An `Observer` that shows rounds, centers and time left."""

    def __init__(self, console: Console, title: str, quiet: bool = False) -> None:
        self.console = console
        self.title = title
        self.quiet = quiet  # bar only, no line a round
        self.stop_asked = False
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._parts = 1
        self._rounds = 0

    @contextmanager
    def watching(self) -> Iterator[Display]:
        """While inside, the display is live and Ctrl-C is taken down as a wish to stop."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            with self._progress:
                yield self
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.stop_asked:  # a second Ctrl-C: at once; files are written atomically, so nothing is lost
            raise Stopped
        self.stop_asked = True
        self.console.print("Stopping after this center; press Ctrl-C again to stop at once.")

    def started(self, federation: Federation, rounds: int, done: int, notes: tuple[str, ...]) -> None:
        self._rounds = rounds
        self._parts = len(federation.centers) + 1
        # A step of the bar is a center, so that it moves, and its time left is right, within a round.
        self._task = self._progress.add_task(
            self.title, total=rounds * self._parts, completed=done * self._parts, note=""
        )
        self._done = done
        for note in notes:
            self.console.print(f"Note: {note}")
        if done:
            self.console.print(f"{self.title}: going on after round {done} of {rounds}.")

    def center(self, round: int, name: str) -> None:
        if self.stop_asked:
            raise Stopped
        self._progress.update(self._task, description=f"{self.title} round {round}", note=name)
        self._progress.advance(self._task)

    def round(self, record: Record) -> None:
        self._progress.update(self._task, completed=record["round"] * self._parts)
        if not self.quiet:
            self.console.print(round_line(record, self._rounds), soft_wrap=True, highlight=False)
        if self.stop_asked:
            raise Stopped


def round_line(record: Record, rounds: int) -> str:
    """`round 3/50  fine 41.2%  coarse 70.1%  confident 52% (right 91%)  M-hat error 0.53  4.1 s`."""
    parts = [f"round {record['round']}/{rounds}"]
    parts += [f"{name} {value:.1%}" for name, value in record["accuracy"].items() if "(mean M)" not in name]
    if "confident_share" in record:
        right = record.get("pseudo_label_accuracy")
        known = f" (right {right:.0%})" if right is not None else ""
        parts.append(f"confident {record['confident_share']:.0%}{known}")
    if "correspondence_error" in record:
        parts.append(f"M-hat error {record['correspondence_error']:.2f}")
    out = [n for n, c in record["centers"].items() if "abstained" in c]
    if out:
        parts.append(f"{len(out)} abstained")
    broken = [n for n, c in record["centers"].items() if "left_out" in c]
    if broken:
        parts.append(f"left out, diverged: {', '.join(broken)}")
    parts.append(f"{record['seconds']['total']:.1f} s")
    return "  ".join(parts)


def make_console() -> Console:
    """The console for progress and results; wide enough for plain lines when piped."""
    return Console() if sys.stdout.isatty() else Console(width=200)
