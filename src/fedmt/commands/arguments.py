"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The federation and how to train.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or a file of `fedmt export --safetensors`.")
]
