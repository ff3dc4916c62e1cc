"""Tensors and facts as Flower's records, to the bit and in few objects.

All tensors of a message are one array of bytes in the safetensors format: every type comes back as it
was, integers too, and a network of a hundred layers costs a handful of requests instead of hundreds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from torch import Tensor

from fedmt.core.errors import FedmtError

Wire = Literal["float32", "bfloat16"]
Weights = dict[str, Tensor]

FORMAT = "safetensors"


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in sorted(tensors.items())})


def rounded(tensors: Mapping[str, Tensor], wire: Wire) -> Weights:
    """The tensors as they travel. In bfloat16, matrices alone: vectors (statistics, biases) weigh little,
    and a rounded variance would cost more than it saves."""
    if wire == "float32":
        return dict(tensors)
    return {
        k: v.to(torch.bfloat16) if v.dim() >= 2 and v.dtype == torch.float32 else v
        for k, v in tensors.items()
    }


def widened(tensors: Mapping[str, Tensor]) -> Weights:
    """The inverse of `rounded`, as far as there is one."""
    return {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in tensors.items()}


def record(data: bytes) -> ArrayRecord:
    return ArrayRecord({FORMAT: Array("uint8", (len(data),), FORMAT, data)})


def message(facts: Mapping[str, Any], **tensors: bytes) -> RecordDict:
    """Facts as JSON, and tensors by what they are, each as `to_bytes` gives them."""
    content: dict[str, Any] = {"facts": ConfigRecord({"json": json.dumps(facts)})}
    content.update({name: record(data) for name, data in tensors.items()})
    return RecordDict(content)


def facts_of(content: RecordDict) -> dict[str, Any]:
    try:
        facts = json.loads(str(content["facts"]["json"]))
    except (KeyError, TypeError, ValueError):
        raise FedmtError("a message without facts: it is not from fedmt.") from None
    if not isinstance(facts, dict):
        raise FedmtError("a message whose facts are no table.")
    return facts


def tensors_of(content: RecordDict, name: str) -> Weights:
    """The tensors under a name; none where there is no such record."""
    if name not in content:
        return {}
    found = content[name]
    try:
        array = found[FORMAT]
        if not isinstance(array, Array) or array.stype != FORMAT:
            raise FedmtError(f"'{name}' does not hold tensors.")
        return widened(safetensors.torch.load(array.data))
    except (KeyError, SafetensorError, ValueError) as error:
        raise FedmtError(f"'{name}' cannot be read ({error}).") from None
