"""The progress shown while the runs of an experiment are in progress."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.progress import TaskID, TimeRemainingColumn

from fedmt.commands.sweeps.expansion import Run
from fedmt.commands.sweeps.scales import cost
from fedmt.training.progress import Live


class Display(Live):
    """Shows the finished runs, the current runs and their rounds, and the time left. Prints plain lines if
    there is no terminal."""

    def __init__(self, console: Console, runs: list[Run]) -> None:
        super().__init__(console, TimeRemainingColumn(elapsed_when_finished=False))
        self._total, self._ended = len(runs), 0
        # The bar counts trained images, because runs differ in size. If the number is unknown, it counts
        # runs.
        costs = {r.key: cost(r.config) for r in runs}
        self._costs = (
            {k: float(c or 1) for k, c in costs.items()} if all(costs.values()) else dict.fromkeys(costs, 1.0)
        )
        self._rounds: dict[str, int] = {}
        self._notes: set[str] = set()
        self._all = self._progress.add_task(f"runs 0/{self._total}", total=sum(self._costs.values()), note="")
        self._tasks: dict[str, TaskID] = {}
        self._done = dict.fromkeys(self._costs, 0.0)

    def _stop_at_once(self) -> None:
        """Stops at once: files are replaced whole, and workers end by themselves."""
        self._progress.stop()
        os._exit(130)

    def heard(self, one: Run, kind: str, *rest: Any) -> None:
        """A message from a worker."""
        key = one.key
        if kind == "started":
            done, self._rounds[key], notes = rest
            if key in self._tasks:  # its process died, and the run is tried once more
                self._progress.remove_task(self._tasks.pop(key))
            self._tasks[key] = self._progress.add_task(one.label, total=self._rounds[key], note="")
            self._move(key, done)
            if not self.console.is_terminal:
                going_on = f", continuing after round {done}" if done else ""
                self.console.print(f"{one.label}: started{going_on}", soft_wrap=True)
            for note in notes:
                self._note(one, note)
        elif kind == "noted":
            self._note(one, rest[0])
        elif kind == "round":
            self._move(key, rest[0])
        else:
            round, name = rest
            stage = f"round {round}/{self._rounds[key]}" if round else "warm-up"
            self._progress.update(self._tasks[key], note=f"{stage}, {name}")

    def _note(self, one: Run, note: str) -> None:
        if note not in self._notes:  # one sentence per seed would hide the others
            self._notes.add(note)
            self.console.print(f"Note: {one.label}: {note}", soft_wrap=True)

    def _move(self, key: str, round: int) -> None:
        self._progress.update(self._tasks[key], completed=round)
        self._done[key] = self._costs[key] * round / self._rounds[key]
        self._progress.update(self._all, completed=sum(self._done.values()))

    def done(self, one: Run, text: str) -> None:
        self._ended += 1
        if one.key in self._tasks:
            self._progress.remove_task(self._tasks.pop(one.key))
        self._done[one.key] = self._costs[one.key]
        self._progress.update(
            self._all, description=f"runs {self._ended}/{self._total}", completed=sum(self._done.values())
        )
        self.console.print(f"[{self._ended}/{self._total}] {one.label}: {text}", soft_wrap=True)
