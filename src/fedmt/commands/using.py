"""The commands that use a trained model: `predict` and `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmt.commands.arguments import AllowOption, PriorOption, RunArgument
from fedmt.core.errors import FedmtError, listed


def predict(
    run: RunArgument,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT…",
            help="Samples (such as images), folders of samples, or CSVs that name them. For texts: a CSV, "
            "or a file with one text per line.",
        ),
    ],
    space: Annotated[
        str | None, typer.Option(help="Label space of the answer. By default, the wanted one.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of top classes to show.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="CSV", help="Write all rows to this file.")] = None,
    center: Annotated[
        str | None, typer.Option(help="Use this center's own matrix or head instead of the mean.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column", "--image-column", help="Column of a CSV that names the files or holds the texts."
        ),
    ] = None,
    prior: PriorOption = None,
    device: Annotated[str, typer.Option(help="Device to predict on: auto, cpu, cuda or cuda:1.")] = "auto",
    allow: AllowOption = None,
) -> None:
    """Predict classes and probabilities of samples, in any label space of the federation."""
    from rich.console import Console

    from fedmt.commands.predicting import command_line
    from fedmt.commands.steps import next_step

    console = Console(stderr=True, markup=False, highlight=False)
    named = allow or []
    if not command_line(
        run, inputs, space, top, out, center, column, prior, device, sys.stdout, console, named
    ):
        raise typer.Exit(1)
    again = [word for name in named for word in ("--allow", name)]
    again += [] if prior is None else ["--prior", prior]
    next_step(console, "export", run, "--onnx", "model.onnx", *again)


def export(
    run: RunArgument,
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the network that maps samples to probabilities in every label space."
        ),
    ] = None,
    safetensors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights, with a model card as JSON next to them.")
    ] = None,
    prior: PriorOption = None,
    allow: AllowOption = None,
) -> None:
    """Write the model as a file to deploy or share."""
    if onnx is None and safetensors is None:
        raise FedmtError("export: what should be written? Give --onnx FILE, --safetensors FILE or both.")
    from fedmt.commands.steps import SAMPLES, next_step
    from fedmt.core.registry import importing_only
    from fedmt.models import load
    from fedmt.runs.files import writing
    from fedmt.runs.folder import refuse_own_files
    from fedmt.training.progress import make_console

    targets = [target for target in (onnx, safetensors) if target is not None]
    for target in targets:
        refuse_own_files(run, target)
    named = allow or []
    model = load(run, "cpu", allow=named)
    if prior is not None:
        model = model.answering_for(prior)
    for target in targets:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
    console = make_console()
    if safetensors is not None:
        from fedmt.models.export.safetensors import export_safetensors

        with importing_only(named):
            card = export_safetensors(model, run, safetensors)
        console.print(f"Weights: {safetensors}\nModel card: {card}", soft_wrap=True)
    if onnx is not None:
        from fedmt.models.export.onnx import export_onnx

        difference = export_onnx(model, onnx)
        checked = (
            "not compared with PyTorch: onnxruntime is not installed"
            if difference is None
            else f"compared with PyTorch: probabilities differ by at most {difference:.1g}"
        )
        console.print(f"ONNX: {onnx} ({checked})", soft_wrap=True)
    if model.prior is not None:
        own = [space for space in model.spaces if not model.from_wanted(space)]
        where, others = "", ""
        if own:
            where = f" in {listed(space for space in model.spaces if space not in own)}"
            others = f" Those in {listed(own)} are from separate heads, to which this does not apply."
        said = f"The exported model's probabilities{where} are for {model.prior.words}.{others}"
        console.print(said, soft_wrap=True)
    again = [word for name in named for word in ("--allow", name)]
    # A safetensors file contains the prior, but a run folder does not.
    again += ["--prior", prior] if prior is not None and safetensors is None else []
    next_step(console, "predict", safetensors or run, SAMPLES, *again)
