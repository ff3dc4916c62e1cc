"""A digest of tensors, to tell whether they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Detects a flipped bit. Safetensors itself only notices a truncated file."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        value = tensors[key].cpu().contiguous()
        digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()
