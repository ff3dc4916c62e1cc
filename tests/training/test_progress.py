"""The display while data is read: a separate bar, in addition to that of the rounds."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fedmt.core.progress import tell
from fedmt.training.progress import Display, make_console, show_accuracy
from fedmt.training.run import Stopped


def test_reading_has_a_bar_until_it_is_done() -> None:
    output = io.StringIO()
    display = Display(Console(file=output, force_terminal=True, width=120), "demo")
    with display.showing():
        tell("Decoding images", 256, 1000)
        display._progress.refresh()
        assert [t.description for t in display._progress.tasks] == ["demo", "Decoding images"]
        tell("Decoding images", 1000, 1000)
        assert [t.description for t in display._progress.tasks] == ["demo"]
        tell("Decoding images", 1, 3)  # the next source
        display.stop_asked = True
        with pytest.raises(Stopped):
            tell("Decoding images", 2, 3)
    assert "256 of 1,000" in output.getvalue()
    tell("Decoding images", 3, 3)  # after the display has ended, without a listener


def test_the_final_table_shows_what_the_verdict_rests_on(capsys) -> None:
    """With uneven test classes, the run with the lower accuracy may be the better one."""
    even: dict[str, Any] = {"method": "fedmt", "rounds": 4, "accuracy": {"fine": 0.8}}
    even["metrics"] = {"balanced_accuracy": {"fine": {"value": 0.8, "low": 0.7, "high": 0.9}}}
    console = make_console()
    show_accuracy(console, even, tested=True)
    assert "balanced" not in capsys.readouterr().out
    uneven = {**even, "accuracy": {"fine": 0.3, "coarse": 0.5}}
    uneven["metrics"] = {"balanced_accuracy": {"fine": {"value": 0.745, "low": 0.7, "high": 0.8}}}
    show_accuracy(console, uneven, tested=True)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "fine", "│", "30.0%", "│", "74.5%", "│"] in shown
    assert ["│", "coarse", "│", "50.0%", "│", "-", "│"] in shown
