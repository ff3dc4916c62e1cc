"""The display while data is read: a separate bar, in addition to that of the rounds."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedmt.core.progress import tell
from fedmt.training.progress import Display
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
