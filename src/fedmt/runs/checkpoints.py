"""A checkpoint file: the state after a round, as safetensors with a digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.tensor_files import to_bytes
from fedmt.engines.state import State

FORMAT = "fedmt-2"
"""Format of the checkpoints. In format 2, the memory of strategies and methods is under `server/` and
`kept/`."""


def load_checkpoint(path: Path) -> State:
    """Reads and verifies one checkpoint file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise FedmtError(f"{path}: the checkpoint is damaged ({error}).") from None
    if metadata.get("format", FORMAT) != FORMAT:
        raise FedmtError(
            f"{path}: it was written by another version of fedmt (format {metadata['format']}, but this "
            f"version has {FORMAT}). Continue with that version, or start a new run in another --out."
        )
    if "format" not in metadata or metadata.get("digest") != digest_of(tensors):
        raise FedmtError(f"{path}: the checkpoint is damaged (its contents do not match their digest).")
    weights: dict[str, Tensor] = {}
    server: dict[str, Tensor] = {}
    kept: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        if kind == "weights":
            weights[name] = value
        elif kind == "server":
            server[name] = value
        else:
            center, item = name.rsplit("/", 1)
            kept.setdefault(center, {})[item] = value
    return State(int(metadata["round"]), weights, server, kept)


def dump_state(state: State, more: Mapping[str, str] | None = None) -> bytes:
    """A state in the form that `load_checkpoint` reads. `more` is added to the file's metadata."""
    tensors = _flatten(state)
    metadata = {"round": str(state.round), "digest": digest_of(tensors), "format": FORMAT}
    return to_bytes(tensors, {**(more or {}), **metadata})


def _flatten(state: State) -> dict[str, Tensor]:
    flat = {f"weights/{k}": v for k, v in state.weights.items()}
    flat |= {f"server/{k}": v for k, v in state.server.items()}
    for center, items in state.kept.items():
        flat |= {f"kept/{center}/{k}": v for k, v in items.items()}
    return {k: v.detach().cpu().contiguous() for k, v in sorted(flat.items())}
