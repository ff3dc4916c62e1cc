"""Converts a user's arrays in memory (NumPy, torch or lists) to one tensor, or raises an error that says why
not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError, cut

SHAPES = 3
"""The number of different shapes that the error about a ragged array shows."""


def as_tensor(given: Any, where: str) -> Tensor:
    """An array, or a list of equal ones, as a tensor on the CPU. where: prefix of the error messages.

    >>> as_tensor([[1.0, 2.0], [3.0, 4.0]], "center 'Oslo'").shape
    torch.Size([2, 2])
    """
    if isinstance(given, Tensor):
        return given.detach().cpu()
    if isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
        given = [np.asarray(item.detach().cpu()) if isinstance(item, Tensor) else item for item in given]
    try:
        array = np.asarray(given)
    except ValueError:  # NumPy calls ragged arrays inhomogeneous
        raise FedmtError(f"{where}: {_ragged(given)}") from None
    if array.dtype == object:
        raise FedmtError(f"{where}: {_ragged(list(array)) if array.ndim else _not_an_array(given)}")
    try:
        return shared(array)
    except TypeError:
        raise FedmtError(
            f"{where}: an array of dtype {array.dtype} and shape {array.shape}; expected numbers."
        ) from None


def shared(array: NDArray[Any]) -> Tensor:
    """The tensor of an array, in the same memory where that is possible. It may be read-only, because nothing
    writes to a sample."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def count_not_finite(values: Tensor) -> int:
    """The number of values that are NaN or infinite."""
    return int((~values.isfinite()).sum()) if values.is_floating_point() else 0


def _ragged(given: Any) -> str:
    shapes = list(dict.fromkeys(str(_shape(item)) for item in given))
    if len(shapes) < 2:
        kinds = list(dict.fromkeys(type(item).__name__ for item in given))
        return f"an object array, with elements of type {cut(kinds, SHAPES)}; expected one array of numbers."
    return (
        f"a ragged array: its samples have the shapes {cut(shapes, SHAPES)}; convert all samples to one "
        "shape."
    )


def _shape(item: Any) -> Any:
    try:
        return tuple(np.shape(item))
    except ValueError:
        return "ragged"


def _not_an_array(given: Any) -> str:
    return f"an object of type {type(given).__name__}; expected an array, a tensor or a list of numbers."
