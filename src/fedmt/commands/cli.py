"""The command line: its first help page, and how a user's mistake is reported.

The commands themselves are in `commands/`. Nothing here may import torch, which takes seconds.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

import fedmt
from fedmt.commands.auditing import audit
from fedmt.commands.preparing import check, init, schema
from fedmt.commands.reporting import compare, report, watch
from fedmt.commands.training import quickstart, reproduce, run_command, sweep
from fedmt.commands.using import export, predict
from fedmt.core.errors import FedmtError, nearest

if TYPE_CHECKING:
    import click  # newer versions of typer bundle it


class Commands(TyperGroup):
    """Suggests the nearest command and lists all commands when the given name is unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            ctx.fail(f"No such command '{args[0]}'.{nearest(args[0], known)} Known: {', '.join(known)}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    epilog="Start with `fedmt quickstart`. For your own data, run `fedmt init DATA`, then check, run and "
    "report.",
    help="Federated learning between centers that label differently: one model in the label space you want.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

# The commands appear in this order on the help page. A command that needs an argument shows its help when it
# is given none.
app.command(epilog="Example: fedmt init data/")(init)
app.command(
    "run",
    no_args_is_help=True,
    epilog="Example: fedmt run federation.toml --baseline single --rounds 20",
)(run_command)
app.command(no_args_is_help=True, epilog="Example: fedmt check federation.toml")(check)
app.command(no_args_is_help=True, epilog="Example: fedmt schema federation.toml")(schema)
app.command(
    no_args_is_help=True,
    epilog="Example: fedmt report runs/first runs/second --out both.html",
)(report)
app.command(no_args_is_help=True, epilog="Example: fedmt compare runs/federation-single runs/federation")(
    compare
)
app.command(no_args_is_help=True, epilog="Example: fedmt watch runs/first")(watch)
app.command(epilog="Example: fedmt quickstart")(quickstart)
app.command(no_args_is_help=True, epilog="Example: fedmt sweep sweep.toml --seeds 3")(sweep)
app.command(epilog="Example: fedmt reproduce strategies --scale tiny --seeds 1")(reproduce)
app.command(
    no_args_is_help=True,
    epilog="Example: fedmt predict runs/first scans/ --space triage --out predictions.csv",
)(predict)
app.command(no_args_is_help=True, epilog="Example: fedmt export runs/first --onnx model.onnx")(export)
app.command(no_args_is_help=True, epilog="Example: fedmt audit runs/first/audit.jsonl")(audit)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fedmt {fedmt.__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point. A user's mistake ends with a message and exit status 2, without a traceback."""
    warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=sys.stderr)
    try:
        app()
    except FedmtError as error:
        print(f"fedmt: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of the output, such as `head`, has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a file or folder that cannot be read or written, or a full disk
        place = f"{error.filename}: " if error.filename else ""
        print(f"fedmt: {place}{error.strerror or error}.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
