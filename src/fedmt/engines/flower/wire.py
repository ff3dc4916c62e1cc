"""Tensors and facts as Flower's records, bit for bit and in few objects.

All tensors of a message are one array of bytes in the safetensors format: every type is restored exactly,
including integers, and a network of a hundred layers costs a handful of requests instead of hundreds.
"""

from __future__ import annotations

import hashlib
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
FACTS, SIGNATURE = "facts", "signature"

LONGEST = 4 << 20
"""Maximum number of bytes of facts that are read. A plan is a few kilobytes, or more if a table has many
columns."""

LARGEST = 2**63
"""No count in a message is larger. Python cannot convert an integer of 400 digits to a float."""

TYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
"""Types that torch supports everywhere. For others, such as float8, even isfinite may be missing."""


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in sorted(tensors.items())})


def rounded(tensors: Mapping[str, Tensor], wire: Wire) -> Weights:
    """The tensors as they travel. With bfloat16, only matrices are rounded: vectors (statistics, biases) take
    little space, and a rounded variance would cost more than it saves."""
    if wire == "float32":
        return dict(tensors)
    return {
        k: v.to(torch.bfloat16) if v.dim() >= 2 and v.dtype == torch.float32 else v
        for k, v in tensors.items()
    }


def widened(tensors: Mapping[str, Tensor]) -> Weights:
    """The inverse of `rounded`, as far as possible."""
    return {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in tensors.items()}


def record(data: bytes) -> ArrayRecord:
    return ArrayRecord({FORMAT: Array("uint8", (len(data),), FORMAT, data)})


def message(facts: Mapping[str, Any], **tensors: bytes) -> RecordDict:
    """Facts as JSON, and tensors by kind, each as returned by `to_bytes`."""
    content: dict[str, Any] = {FACTS: ConfigRecord({"json": json.dumps(facts)})}
    content.update({name: record(data) for name, data in tensors.items()})
    return RecordDict(content)


def facts_of(content: RecordDict) -> dict[str, Any]:
    """The facts of a message from outside. Any mistake in them raises a FedmtError."""
    try:
        text = str(content[FACTS]["json"])
        if len(text) > LONGEST:
            raise FedmtError(f"a message whose facts are {len(text):,} characters long")
        facts = json.loads(text, parse_int=_integer, parse_constant=_constant)
    except RecursionError:
        raise FedmtError("a message whose facts are nested too deeply") from None
    except (KeyError, TypeError, ValueError):
        raise FedmtError("a message without facts: it is not from fedmt") from None
    if not isinstance(facts, dict):
        raise FedmtError("a message whose facts are not a table")
    return facts


def _integer(digits: str) -> int:
    number = int(digits[:30])
    if len(digits) > 30 or abs(number) >= LARGEST:
        raise FedmtError(f"a message with a number of {len(digits)} digits")
    return number


def _constant(name: str) -> float:
    raise FedmtError(f"a message with {name} for a number")


def parts_of(content: RecordDict) -> dict[str, bytes]:
    """By name, the bytes that a message consists of. Raises an error if it contains anything else."""
    parts: dict[str, bytes] = {}
    for name in sorted(content):
        if name == SIGNATURE:
            continue
        found = content[name]
        if name == FACTS and isinstance(found, ConfigRecord) and list(found) == ["json"]:
            parts[name] = str(found["json"]).encode("utf-8", "surrogatepass")
        elif isinstance(found, ArrayRecord) and list(found) == [FORMAT]:
            parts[name] = found[FORMAT].data
        else:
            raise FedmtError(f"a message with a record '{name}' that is not fedmt's")
    return parts


def digests_of(parts: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}


def tensors_of(content: RecordDict, name: str) -> Weights:
    """The tensors under a name. None if there is no such record."""
    if name not in content:
        return {}
    found = content[name]
    try:
        array = found[FORMAT]
        if not isinstance(array, Array) or array.stype != FORMAT:
            raise FedmtError(f"'{name}' does not hold tensors.")
        tensors = safetensors.torch.load(array.data)
    except (AttributeError, KeyError, TypeError, SafetensorError, ValueError) as error:
        raise FedmtError(f"'{name}' cannot be read ({error}).") from None
    odd = sorted({str(v.dtype) for v in tensors.values()} - {str(dtype) for dtype in TYPES})
    if odd:
        raise FedmtError(f"'{name}' has tensors of type {', '.join(odd)}, which fedmt does not send")
    return widened(tensors)
