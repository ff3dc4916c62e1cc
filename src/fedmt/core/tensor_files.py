"""safetensors files whose bytes depend only on their contents.

The library writes the metadata in the order of a hash table, which differs from process to process, so equal
runs would have different files. Everything else already has a fixed order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from torch import Tensor

METADATA = "__metadata__"


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The tensors, sorted by name, and the metadata, sorted by key."""
    plain = {k: v.detach().cpu().contiguous() for k, v in sorted(tensors.items())}
    return in_order(safetensors.torch.save(plain, dict(metadata)))


def in_order(data: bytes) -> bytes:
    """A file with its metadata sorted. The format: the header's length in 8 bytes, the header as JSON, and
    the tensors, which begin at a multiple of 8."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if METADATA in header:
        header[METADATA] = dict(sorted(header[METADATA].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]
