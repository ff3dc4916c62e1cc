"""CIFAR-100 (Krizhevsky 2009) from its standard `cifar-100-python` folder: files train, test and meta.

They are pickles, which can run any code while they load, so they are read by an unpickler that only creates
lists, dicts, strings, numbers and plain integer arrays, and rejects everything else.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.data.sampleset import SampleSet, Split, check_split
from fedmt.data.sources.base import Request, Source
from fedmt.data.specs import SourceSpec
from fedmt.inputs.images.shaping import AS_STORED, ImageOptions, conform

FOLDER = "cifar-100-python"


def read_cifar100(path: str | Path, split: Split, options: ImageOptions = AS_STORED) -> SampleSet:
    """A split of the set, labeled in "fine" (100 classes) and "coarse" (20 classes).

    path: the folder `cifar-100-python`, or the folder it is in.
    """
    check_split(split, "CIFAR-100")
    folder = Path(path)
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    if not (folder / split).is_file():
        raise FedmtError(
            f"{folder}: there is no file '{split}' in it; expected the unpacked folder '{FOLDER}' with the "
            "files train, test and meta (https://www.cs.toronto.edu/~kriz/cifar.html)."
        )
    record, meta = _unpickle(folder / split), _unpickle(folder / "meta")
    data = _entry(record, "data", folder / split)
    if not isinstance(data, ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} {data.shape}" if isinstance(data, ndarray) else type(data).__name__
        raise FedmtError(f"{folder / split}: 'data' is {found}; expected uint8 [N, 3072].")
    images = torch.tensor(data).reshape(-1, 3, 32, 32)
    spaces = {name: _space(meta, name, folder / "meta") for name in ("fine", "coarse")}
    labels = {name: _labels(record, space, len(images), folder / split) for name, space in spaces.items()}
    return SampleSet(conform(images, options, str(folder / split)), labels, spaces)


def cifar100_correspondence(train: SampleSet) -> Correspondence:
    """The correspondence fine -> coarse, derived from the labels of the images."""
    fine, coarse = train.spaces["fine"], train.spaces["coarse"]
    mapping: dict[str, str] = {}
    pairs = zip(train.labels["fine"].tolist(), train.labels["coarse"].tolist(), strict=True)
    for k, j in sorted(set(pairs)):
        name, target = fine.classes[k], coarse.classes[j]
        if mapping.setdefault(name, target) != target:
            raise FedmtError(
                f"CIFAR-100: images of the fine class '{name}' are labeled both '{mapping[name]}' and "
                f"'{target}' in the coarse space, but each can belong to only one. Download the set again."
            )
    return Correspondence.from_mapping(fine, coarse, mapping, "CIFAR-100")


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            # The original archive was written by Python 2. latin-1 preserves its strings byte by byte.
            content = _Unpickler(file, encoding="latin1").load()
    except FedmtError as error:
        raise FedmtError(f"{path}: {error}") from None
    except OSError as error:
        raise FedmtError(f"{path}: it cannot be read ({error.strerror}). Unpack all of '{FOLDER}'.") from None
    except Exception as error:  # a damaged pickle may raise almost any exception
        reason = str(error) or type(error).__name__
        raise FedmtError(f"{path}: truncated or damaged ({reason}); unpack the archive again.") from None
    if not isinstance(content, dict):
        raise FedmtError(f"{path}: it contains a {type(content).__name__}, expected the dict of CIFAR-100.")
    return {_text(key): value for key, value in content.items()}


def _text(item: Any) -> str:
    return item.decode("latin1") if isinstance(item, bytes) else str(item)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 2 renamed numpy.core to numpy._core. Files name the one that wrote them.
        allowed = _ALLOWED.get((module.replace("numpy._core", "numpy.core"), name))
        if allowed is None:
            raise FedmtError(
                f"refused to load '{module}.{name}', which does not belong in CIFAR-100 and could run code; "
                "download the set from its official page"
            )
        return allowed


def _dtype(code: object, *_: object) -> np.dtype[Any]:
    """Replaces `numpy.dtype`, which could also describe arrays of Python objects."""
    if str(code) not in ("u1", "i4", "i8"):
        raise FedmtError(f"refused to load an array of type '{code}'; CIFAR-100 has only integers")
    return np.dtype(str(code))


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Replaces `_codecs.encode`, with which Python 3 writes bytes into a pickle that Python 2 can read."""
    return text.encode("latin1")


def _frombuffer(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> Any:
    """Equivalent to NumPy's function of that name, which pickles of protocol 5 use for arrays."""
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


_reconstruct: Any = np.zeros(0).__reduce__()[0]  # its module's name differs between NumPy 1 and 2
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy", "ndarray"): ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}


def _entry(record: dict[str, Any], key: str, path: Path) -> Any:
    if key not in record:
        raise FedmtError(f"{path}: has no entry '{key}'; is it really CIFAR-100 (and not CIFAR-10)?")
    return record[key]


def _space(meta: dict[str, Any], name: str, path: Path) -> LabelSpace:
    names = _entry(meta, f"{name}_label_names", path)
    if not isinstance(names, list):
        raise FedmtError(f"{path}: '{name}_label_names' is a {type(names).__name__}, expected a list.")
    return LabelSpace(name, [_text(item) for item in names])


def _labels(record: dict[str, Any], space: LabelSpace, count: int, path: Path) -> Tensor:
    key = f"{space.name}_labels"
    try:
        labels = torch.as_tensor(_entry(record, key, path)).to(torch.int64)
    except (TypeError, ValueError, RuntimeError):
        raise FedmtError(f"{path}: '{key}' is not a list of integers.") from None
    if labels.shape != (count,):
        raise FedmtError(f"{path}: {count} images but '{key}' of shape {tuple(labels.shape)}.")
    outside = ((labels < 0) | (labels >= len(space))).nonzero().flatten()
    if len(outside):
        i = int(outside[0])
        raise FedmtError(
            f"{path}: {key}[{i}] is {int(labels[i])}, but '{space.name}' has {len(space)} classes "
            f"(0 to {len(space) - 1})."
        )
    return labels


class Cifar100(Source):
    """`path` is the folder `cifar-100-python`."""

    name = "cifar100"

    def read(self, request: Request) -> SampleSet:
        return read_cifar100(request.path, request.split, request.images)

    def has_test_part(self, spec: SourceSpec) -> bool:
        return True
