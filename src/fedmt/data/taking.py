"""Separates what a user has in memory (arrays, a torch Dataset or a data frame) into samples and labels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import LabelSpace
from fedmt.data.frames import is_frame
from fedmt.data.groups import group_numbers
from fedmt.data.sampleset import label_positions
from fedmt.inputs import INPUTS, Input


def taken(x: Any, y: Any, where: str, label_column: str) -> tuple[Any, Any]:
    """Samples and labels. Labels are None if there are none. label_column: the column of a frame given
    without y."""
    if isinstance(x, Dataset):
        if y is not None:
            raise FedmtError(
                f"{where}: both a Dataset of (x, y) and separate labels are given. Keep only one of the two."
            )
        return _from_dataset(x, where)
    if is_frame(x):
        if isinstance(y, str) and y not in x.columns:
            raise FedmtError(
                f"{where}: the frame has no column '{y}'; its columns are {listed(map(str, x.columns))}."
                f"{nearest(y, map(str, x.columns))}"
            )
        column = y if isinstance(y, str) else label_column
        if column in x.columns and (y is None or isinstance(y, str)):
            return x.drop(columns=[column]), x[column]
        return x, y
    if isinstance(y, str):
        raise FedmtError(f"{where}: y is the text {y!r}; expected the labels, or a frame with such a column.")
    return x, y


def grouped(x: Any, groups: Any, where: str) -> tuple[Any, Tensor | None]:
    """The samples without a column that names their groups, and the group of each sample, if there are
    any."""
    if groups is None:
        return x, None
    if isinstance(groups, str):
        columns = list(map(str, x.columns)) if is_frame(x) else []
        if groups not in columns:
            found = f"its columns are {listed(columns)}" if columns else "x is not a data frame"
            raise FedmtError(
                f"{where}: groups: there is no column '{groups}', because {found}.{nearest(groups, columns)}"
            )
        x, groups = x.drop(columns=[groups]), x[groups]
    names = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    missing = [i for i, name in enumerate(names) if _is_missing(name)]
    if missing:
        raise FedmtError(
            f"{where}: groups: {len(missing):,} of {len(names):,} are missing, the first is groups"
            f"[{missing[0]}]. Give each of these samples a group of its own."
        )
    # A column of whole numbers with a missing value, in pandas, has become one of floats.
    whole = [int(n) if isinstance(n, float) and n.is_integer() else n for n in names]
    return x, group_numbers([str(name).strip() for name in whole])


def guessed(x: Any, where: str) -> type[Input]:
    """What the samples are: rows of a frame, texts, vectors [N, D], or images, which have more dimensions."""
    if is_frame(x):
        return INPUTS["tables"]
    first = next(iter(x), None) if hasattr(x, "__iter__") else None
    if isinstance(first, str):
        if os.path.isfile(first):  # as texts, the names of files would often give the labels away
            raise FedmtError(
                f"{where}: x has names of files, such as '{first}'. Read the files first, for example with "
                'PIL.Image.open. If these names are the texts to classify, pass input="text".'
            )
        return INPUTS["text"]
    dimensions = 1 + np.ndim(x[0]) if isinstance(x, list | tuple) and x else np.ndim(x)
    return INPUTS["vectors"] if dimensions <= 2 else INPUTS["images"]


def labels_as_positions(y: Any, space: LabelSpace, count: int, where: str, word: str) -> Tensor:
    """Converts class names or integers to positions in `space`, int64 [count]. word: what a sample is
    called."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    missing: list[int] = []
    if isinstance(y, list | tuple):  # NumPy would turn NaN among names into the name 'nan'
        missing = [i for i, label in enumerate(y) if _is_missing(label)]
    try:
        labels = np.asarray(y)
    except ValueError:
        raise FedmtError(f"{where}: ragged labels; expected one label for each {word}.") from None
    if labels.shape != (count,):
        hint = " For scores or a one-hot table, pass argmax(1)." if labels.ndim == 2 else ""
        if labels.shape == (count, 1):  # here, argmax would make all labels 0
            hint = " Remove the second axis, as in y[:, 0]."
        raise FedmtError(f"{where}: {count:,} {word}s but labels of shape {labels.shape}.{hint}")
    if labels.dtype.kind in "Of":
        missing = [i for i, label in enumerate(labels) if _is_missing(label)]
    if missing:
        raise FedmtError(
            f"{where}: {len(missing):,} of {count:,} labels are missing, the first is y[{missing[0]}]; leave "
            f"these {word}s out, or put them at a center without labels."
        )
    if labels.dtype.kind == "O" and all(
        isinstance(label, int | np.integer) and not isinstance(label, bool) for label in labels
    ):
        labels = labels.astype(np.int64)
    if labels.dtype.kind in "iu":
        _check_positions(labels, space, where)
        outside = np.flatnonzero((labels < 0) | (labels >= len(space)))
        if outside.size:
            raise FedmtError(
                f"{where}: {outside.size:,} of {count:,} labels are outside label space '{space.name}', "
                f"whose {len(space)} classes are 0 to {len(space) - 1}; the first is y[{outside[0]}] = "
                f"{labels[outside[0]]}."
            )
        return torch.from_numpy(labels.astype(np.int64))
    names = [label.decode() if isinstance(label, bytes) else label for label in labels.tolist()]
    if not all(isinstance(name, str) for name in names):
        kinds = listed(dict.fromkeys(type(name).__name__ for name in names))
        raise FedmtError(
            f"{where}: labels of dtype {labels.dtype} ({kinds}); expected class names, or integers from 0 to "
            f"{len(space) - 1}."
        )
    return label_positions(names, space, [f"{where}, y[{i}]" for i in range(count)])


def _is_missing(label: Any) -> bool:
    """None, NaN, or one of pandas' own missing values, which cannot be compared."""
    if isinstance(label, float | np.floating):
        return bool(np.isnan(label))
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def _check_positions(labels: NDArray[Any], space: LabelSpace, where: str) -> None:
    """Rejects an integer that is a position in `space` as well as the name of a class at another position."""
    for label in np.unique(labels).tolist():
        if str(label) in space and space.index(str(label)) != label:
            at = space.index(str(label))
            raise FedmtError(
                f"{where}: integers are positions in label space '{space.name}', but {label} is also the "
                f"name of the class at position {at}. Pass the names as text, such as '{label}'."
            )


def _from_dataset(dataset: Dataset[Any], where: str) -> tuple[Any, Any]:
    """Every item of a Dataset: (x, y), or x alone."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) <= 2:
        x, *rest = dataset.tensors
        return x, rest[0] if rest else None
    if isinstance(dataset, IterableDataset):
        items = list(dataset)
    elif hasattr(dataset, "__len__"):
        items = [dataset[i] for i in range(len(dataset))]
    else:
        raise FedmtError(
            f"{where}: the Dataset has no length. Define __len__ in {type(dataset).__name__}, or make it an "
            "IterableDataset."
        )
    if not items:
        raise FedmtError(f"{where}: the Dataset is empty.")
    if any(isinstance(item, Mapping) for item in items):
        raise FedmtError(f"{where}: items of the Dataset are dictionaries; expected (x, y), or x alone.")
    sizes = {len(item) if isinstance(item, tuple | list) else 0 for item in items}
    if sizes == {0} or sizes == {1}:
        return [item[0] if sizes == {1} else item for item in items], None
    if sizes != {2}:
        raise FedmtError(f"{where}: items of the Dataset have {sorted(sizes)} parts; expected (x, y).")
    return [x for x, _ in items], [_plain(y) for _, y in items]


def _plain(label: Any) -> Any:
    """Converts a label that is a zero-dimensional array to a number."""
    return label.item() if isinstance(label, Tensor | np.ndarray | np.generic) and label.ndim == 0 else label
