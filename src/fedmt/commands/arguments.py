"""Arguments and options that several commands share, and the names that a shell completes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

# The names in the registries are repeated here because a shell asks for them at every Tab, and importing the
# registries takes seconds. tests/commands/test_completion.py compares the two.
METHODS = ("fedmt", "single", "fedtrans", "fedrep", "semifl")
METRICS = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "auroc",
    "average_precision",
    "brier_score",
    "log_loss",
    "ece",
)
SCALES = ("full", "small", "tiny")
DEVICES = ("auto", "cpu", "cuda")
PRIORS = ("uniform", "reference", "centers")


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """What a shell completes a word to: the names that begin with it."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The config file: the federation and how to train.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting. May be repeated.")
]
RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run folder, or a file written by `fedmt export --safetensors`."),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object for other programs. Progress goes to standard error."),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Your own code that the model may use, as package.module:Name. Nothing else is imported. "
        "May be repeated.",
    ),
]
PriorOption = Annotated[
    str | None,
    typer.Option(
        metavar="PRIOR",
        autocompletion=one_of(PRIORS),
        help="The expected frequencies of the wanted classes: uniform, reference (as among the samples that "
        "the reference center trained on, plus one of each class), centers (as the centers estimate them), "
        "or a CSV or TOML file with one share per class.",
    ),
]
