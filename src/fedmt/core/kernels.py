"""Triton, the language of our own GPU kernels, if it is installed. It comes with torch for CUDA on Linux.

Without Triton, `jit` leaves a kernel as it is, so that modules with kernels can still be imported. Whoever
launches a kernel first asks whether kernels are `usable`, and otherwise uses torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["jit", "tl", "triton", "usable"]


def jit(counts: Sequence[str] = (), unaligned: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function a kernel.

    Triton compiles a kernel again for a number that is 1 or a multiple of 16, and for an address that is
    not. It does not for these arguments. A compilation takes about a second the first time.

    counts: arguments that are whole numbers. unaligned: arguments that are tensors at any address.
    """

    def made(function: Callable[..., Any]) -> Any:
        if triton is None:
            return function
        return triton.jit(
            function, do_not_specialize=list(counts), do_not_specialize_on_alignment=list(unaligned)
        )

    return made


@jit()
def _add_one(numbers, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(numbers + at, tl.load(numbers + at) + 1.0)


@cache
def usable(device: torch.device) -> bool:
    """Whether kernels can be built and run here. Triton also needs a C compiler."""
    if triton is None or device.type != "cuda":
        return False
    numbers = torch.zeros(8, device=device)
    try:
        with torch.cuda.device(device):
            _add_one[(1,)](numbers, SIZE=8)
        return bool((numbers == 1).all())
    except torch.cuda.OutOfMemoryError:
        raise  # that says nothing about the kernels
    except Exception:
        return False
