"""What a run shows in a notebook: one line that changes in place, for any number of rounds."""

from __future__ import annotations

import sys
from typing import Any

from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.training.progress import round_line


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel. This check does not import IPython."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


class Line:
    """An `Observer` of one output: where the run is, and the last finished round."""

    def __init__(self, title: str) -> None:
        from IPython import display

        ipython: Any = display  # without types
        self._text = ipython.Pretty
        self._title, self._last, self._rounds = title, "", 0
        self._notes: tuple[str, ...] = ()
        self._output = ipython.display(ipython.Pretty(f"{title}: starting"), display_id=True)

    def started(self, engine: LocalEngine, done: int, notes: tuple[str, ...]) -> None:
        self._rounds, self._notes = engine.method.training.rounds, notes

    def center(self, round: int, name: str) -> None:
        stage = f"round {round}/{self._rounds}" if round else "warm-up"
        self._show(f"{self._title}, {stage}: {name}")

    def round(self, record: Record) -> None:
        self._last = round_line(record, self._rounds)
        self._show(f"{self._title}, done" if record["round"] == self._rounds else self._title)

    def _show(self, now: str) -> None:
        lines = [*(f"Note: {note}" for note in self._notes), now, self._last]
        self._output.update(self._text("\n".join(line for line in lines if line)))
