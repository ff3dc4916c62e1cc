"""ONNX: one graph from stored samples to the probabilities of every label space.

Normalization, heads, temperature, the prior and correspondences are part of the graph, and the class names
are in its metadata. Decoding a file and converting it to the stored form are not included.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.models import Model
from fedmt.runs.files import write_atomically

TOLERANCE = 1e-4
"""How far a probability of the graph may be from PyTorch's."""


def output_name(space: str) -> str:
    """The graph's output for a label space."""
    return f"probabilities_{space}"


def export_onnx(model: Model, path: str | Path) -> float | None:
    """Writes the graph. Returns the largest difference from PyTorch, or None if onnxruntime is not
    installed."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise FedmtError(
            f"Exporting to ONNX needs {' and '.join(missing)}; install the extra: pip install 'fedmt[onnx]'."
        )
    predictor = model.predictor().cpu()
    example = model.input.blank(2)
    with torch.no_grad():
        predictor(example)  # what an input keeps permanently must be a real tensor, not one of the exporter's
    try:
        with _quiet():
            program = torch.onnx.export(
                predictor,
                (example,),
                dynamo=True,
                input_names=[model.input.name],
                output_names=[output_name(space) for space in model.spaces],
                dynamic_shapes={"samples": {0: torch.export.Dim("batch")}},
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the user's own network may contain anything
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise FedmtError(
            f"Backbone '{model.description.backbone}' cannot be exported to ONNX: {first[0]}"
        ) from error
    assert program is not None
    proto: Any = program.model_proto
    _strip(proto)
    for key, value in metadata(model).items():
        proto.metadata_props.add(key=key, value=value)
    data: bytes = proto.SerializeToString()
    difference = _difference(data, predictor, model)
    predictor.to(model.device)
    if difference is not None and not difference <= TOLERANCE:
        raise FedmtError(
            f"The ONNX graph answers differently from PyTorch, by up to {difference:.2g}; nothing was "
            f"written. Backbone '{model.description.backbone}' contains an operation that ONNX computes "
            "differently."
        )
    write_atomically(Path(path), data)
    return difference


def metadata(model: Model) -> dict[str, str]:
    """The graph's metadata. Lists and tables are in JSON."""
    return {
        "fedmt.wanted": model.spaces[0],
        "fedmt.spaces": json.dumps({space: model.classes(space) for space in model.spaces}),
        "fedmt.outputs": json.dumps({space: output_name(space) for space in model.spaces}),
        "fedmt.input": json.dumps({"name": model.input.name, **model.input.signature()}),
        "fedmt.calibrated": json.dumps({space: model.calibrated(space) for space in model.spaces}),
        "fedmt.prior": json.dumps(None if model.prior is None else asdict(model.prior)),
        "fedmt.method": str(model.description.method["name"]),
        "fedmt.round": str(model.round),
    }


def _strip(proto: Any) -> None:
    """The exporter records the source of each node, including paths on this machine. This removes them."""
    proto.doc_string = ""
    proto.graph.doc_string = ""
    parts = [proto.graph, *proto.functions]
    for part in parts:
        del part.metadata_props[:]
        for field in ("node", "input", "output", "value_info", "initializer"):
            for item in getattr(part, field, ()):
                if isinstance(item, str):  # a function's inputs are only names
                    continue
                del item.metadata_props[:]
                item.doc_string = ""


def _difference(data: bytes, predictor: torch.nn.Module, model: Model) -> float | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    samples = model.input.example(5, generator)
    with torch.no_grad():
        expected: tuple[Tensor, ...] = predictor(samples)
    found = session.run([output_name(s) for s in model.spaces], {model.input.name: samples.numpy()})
    return max(
        (torch.from_numpy(one) - two).abs().max().item() for one, two in zip(found, expected, strict=True)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about its internals, and about missing libraries that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
