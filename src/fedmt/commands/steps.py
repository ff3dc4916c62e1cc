"""How every command ends: it names the next one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

SAMPLES = "SAMPLES"
"""Stands for the user's own files in a command that is named as the next one."""


def next_step(console: Console, *words: str | Path) -> None:
    """Prints `Next: fedmt report runs/federation`, so that it can be copied into a shell."""
    console.print(f"Next: {shlex.join(['fedmt', *map(str, words)])}", soft_wrap=True)


def stopped(console: Console, words: Iterable[str]) -> None:
    """After Ctrl-C: what is safe, and the command that continues."""
    console.print(
        f"Stopped; every finished round is saved. Continue with:\n  {shlex.join(words)}", soft_wrap=True
    )
