"""How every command ends: it names the next one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

SAMPLES = "SAMPLES"
"""Placeholder for the user's own files in a suggested command."""


def next_step(console: Console, *words: str | Path) -> None:
    """Prints `Next: fedmt report runs/federation`, so that it can be copied into a shell."""
    console.print(f"Next: {shlex.join(['fedmt', *map(str, words)])}", soft_wrap=True)


def stopped(console: Console, words: Iterable[str]) -> None:
    """Says after Ctrl-C what is safe, and prints the command that continues."""
    console.print(
        f"Stopped. Every finished round is saved. Continue with:\n  {shlex.join(words)}", soft_wrap=True
    )
