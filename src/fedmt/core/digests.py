"""A digest of tensors, to tell whether they are still what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Safetensors notices a truncated file, not a flipped bit; this does."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        value = tensors[key].cpu().contiguous()
        digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()
