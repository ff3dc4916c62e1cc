"""The audit log of a run between machines: `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The audit.jsonl of a coordinator or a center.")
    ],
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="Hash of an entry that must be in the log, to find out if its end was cut off.",
        ),
    ] = None,
) -> None:
    """Verify the chain of an audit log and print it as a table."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from fedmt.core.escaping import escaped
    from fedmt.runs.audit import verify, words

    # The lines of the table are long. Print them in full, also through a pipe.
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    entries, problems = verify(file)
    table = Table()
    for column in ("entry", "time (UTC)", "event", "center", "what"):
        table.add_column(column, overflow="fold", no_wrap=column in ("entry", "event"))
    for entry in entries:
        center = escaped(entry.get("center") or "", 60)
        table.add_row(
            str(entry["number"]),
            escaped(entry["time"][:19]),
            escaped(entry["event"], 40),
            center,
            words(entry),
        )
    console.print(table)
    if expect is not None and not any(entry["hash"] == expect.strip().lower() for entry in entries):
        problems.append(
            f"no entry has the hash {escaped(expect, 64)}. Entries that came after it may be missing too."
        )
    for problem in problems:
        console.print(f"{file}: {problem}", soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    last = f" The last hash is {entries[-1]['hash']}." if entries else ""
    console.print(
        f"The chain is intact: {len(entries)} entries.{last} Keep this hash somewhere else and pass it with "
        "--expect later. Without it, nobody can tell whether the end of the log was cut off.",
        soft_wrap=True,
    )
