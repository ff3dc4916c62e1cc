"""Numbers from files and arrays, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError, cut, listed
from fedmt.inputs.archives import check_unpacked
from fedmt.inputs.arrays import shared
from fedmt.inputs.base import Batch, Item
from fedmt.inputs.tabular import MISSING, SUFFIXES, Frame, frame_of, is_number, read_frame

ARRAYS = (".npy", ".npz")

Decode = Callable[[Frame], tuple[Tensor, list[str | None]]]


def features(frame: Frame, names: Sequence[str]) -> Tensor:
    """Columns as float32 [N, D]. Raises an error for text, and for values that are missing or not finite."""
    if not names:
        raise FedmtError(f"{frame.name}: no feature columns; it has {listed(frame.columns) or 'none'}.")
    text = [name for name in names if _is_text(frame, name)]
    if text:
        raise FedmtError(
            f"{frame.name}: {listed(text)} {('has' if len(text) == 1 else 'have')} words, expected numbers; "
            'choose the other columns with vectors.columns, or use input = "tables", which supports '
            "categories."
        )
    values = torch.from_numpy(np.stack([frame.numbers(name) for name in names], 1)).float()
    check_finite(values, names, frame.name, frame)
    return values


def _is_text(frame: Frame, name: str) -> bool:
    """Whether a column consists of words, rather than of numbers with a typing error."""
    cells = frame.column(name)
    wrong = sum(not is_number(cell) for cell in cells if cell not in MISSING) if cells.dtype == object else 0
    return wrong > len(cells) / 2


def check_finite(values: Tensor, names: Sequence[str], where: str, frame: Frame | None = None) -> None:
    """Raises an error that counts the NaN or infinite values in [N, D], and names their columns or column
    numbers."""
    wrong = ~values.isfinite()
    if not bool(wrong.any()):
        return
    counts = wrong.sum(0).tolist()
    titles = [f"'{n}'" for n in names] or [f"column {i}" for i in range(len(counts))]
    each = [f"{count:,} in {title}" for title, count in zip(titles, counts, strict=True) if count]
    row = int(wrong.any(1).nonzero()[0])
    first = f"row {row}" if frame is None else f"{frame.word} {frame.lines[row]}"
    raise FedmtError(
        f"{where}: {sum(counts):,} values are missing, NaN or infinite, the first on {first}: "
        f'{cut(each, 8)}. Fill them in or leave out these rows. input = "tables" supports missing values.'
    )


def array_2d(given: Any, where: str, word: str = "vector") -> Tensor:
    """An array, a tensor or lists as float32 [N, D] on the CPU. An error says what was passed."""
    if isinstance(given, Tensor):
        values = given.detach().cpu()
    else:
        try:
            array: NDArray[Any] = np.asarray(given)
        except ValueError:
            raise FedmtError(
                f"{where}: rows of different lengths; expected an array [N, features]."
            ) from None
        if array.dtype.kind not in "biuf":
            raise FedmtError(
                f"{where}: an array of {array.dtype}, shape {array.shape}; expected numbers [N, features]. "
                "Rows of different lengths, or objects, are not one array."
            )
        values = shared(array)
    if values.dim() != 2:
        shape = tuple(values.shape)
        raise FedmtError(f"{where}: {word}s of shape {shape}; expected [N, features], one row per {word}.")
    return values.float()


def load_array(path: Path, array: str = "vectors") -> Tensor:
    """The vectors in a .npy file, or in an .npz archive under the name `array`."""
    return array_2d(
        load_arrays(path, array)[array], f"{path}: '{array}'" if path.suffix == ".npz" else str(path)
    )


def load_arrays(path: Path, array: str = "vectors") -> dict[str, NDArray[Any]]:
    """All arrays of an .npz archive, which must contain `array`, or the array of a .npy file under
    this name."""
    arrays = archive_arrays(path, array)
    if array not in arrays:
        raise FedmtError(
            f"{path}: no array '{array}'; its arrays are {listed(arrays) or 'none'}. Save the vectors under "
            "this name, or set another name with vectors.array in a config."
        )
    return arrays


def archive_arrays(path: Path, array: str = "vectors") -> dict[str, NDArray[Any]]:
    """All arrays of an .npz archive, or the array of a .npy file under the name `array`."""
    name = ""
    try:
        check_unpacked(path)
        # Loaded without pickle: an array is data and must not be able to run code.
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {array: found}
        arrays = {}
        with found:
            for name in found.files:
                arrays[name] = found[name]
        return arrays
    except FileNotFoundError:
        raise FedmtError(f"{path}: there is no such file; correct its path.") from None
    except FedmtError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        if not name and path.is_file() and not path.read_bytes()[:6].startswith((b"PK", b"\x93NUMPY")):
            raise FedmtError(f"{path}: not a NumPy file; write it with numpy.save or numpy.savez.") from None
        if "pickle" in str(error).lower():
            what = f"array '{name}'" if name else "it"
            raise FedmtError(
                f"{path}: {what} holds Python objects, which are not loaded. Rows of different lengths "
                "become such an array, and so do strings in a data frame. Save numbers [N, features], and "
                "labels as array.astype(str)."
            ) from None
        raise FedmtError(
            f"{path}: cannot be read: {error}. Write it with numpy.save or numpy.savez."
        ) from None


def vector_array(path: Path, array: str = "vectors") -> str | None:
    """The name of the vectors in an .npz archive: `array`, or else its only matrix. None if it has images, no
    matrix or several matrices."""
    arrays = archive_arrays(path, array)
    if array in arrays:
        return array
    matrices = [name for name, found in arrays.items() if found.ndim == 2 and found.dtype.kind in "iuf"]
    return matrices[0] if len(matrices) == 1 and "images" not in arrays else None


# -- what a model is asked about ------------------------------------------------------------------


def asked(given: Any, size: int, columns: Sequence[str], word: str) -> Tensor:
    """Whatever `Model.predict` accepts: a data frame with the model's columns, or an array [N, size]."""
    if hasattr(given, "columns") and columns:
        return features(frame_of(given, "the data frame"), columns)
    values = array_2d(given, f"the {word}s", word)
    if values.shape[1] != size:
        raise FedmtError(
            f"{word}s of shape {tuple(values.shape)}; expected [N, {size}], as the model was trained on."
        )
    check_finite(values, columns, f"the {word}s")
    return values


@dataclass(frozen=True, eq=False)
class RowItem(Item):
    """row: its position in the file."""

    row: int = 0


def find_rows(paths: Sequence[Path]) -> list[Item]:
    """Every row of every file. A folder stands for the tables and arrays in it."""
    items: list[Item] = []
    for path in paths:
        if not path.exists():
            raise FedmtError(f"{path}: there is no such file or folder.")
        files = [path]
        if path.is_dir():
            files = sorted(f for f in path.iterdir() if f.suffix.lower() in (*SUFFIXES, *ARRAYS))
            if not files:
                raise FedmtError(f"{path}: no table in it; expected .csv, .parquet, .npy or .npz files.")
        for file in files:
            frame = open_rows(file)
            if not len(frame):
                raise FedmtError(f"{file}: it contains no rows.")
            items += [RowItem(frame.place(i), frame.place(i), file, i) for i in range(len(frame))]
    return items


def open_rows(path: Path) -> Frame:
    """A table, or an array as a table whose columns are named by their numbers."""
    if path.suffix.lower() not in ARRAYS:
        return read_frame(path)
    archive = path.suffix.lower() == ".npz"
    values = load_array(path, (vector_array(path) if archive else None) or "vectors").double().numpy()
    columns = {str(place): values[:, place] for place in range(values.shape[1])}
    return Frame(str(path), columns, range(len(values)), "row")


def read_rows(items: Sequence[Item], decode: Decode, size: int) -> Iterator[Batch]:
    """The rows that `find_rows` found, one file at a time."""
    for path, group in groupby(items, lambda item: item.path):
        own = list(group)
        samples, errors = decode(open_rows(path))
        rows = [item.row for item in own if isinstance(item, RowItem)]
        said = [errors[row] for row in rows]
        good = [row for row in rows if errors[row] is None]
        yield Batch(own, said, samples[good] if good else torch.empty(0, size))


def decoded(frame: Frame, size: int, columns: Sequence[str]) -> tuple[Tensor, list[str | None]]:
    """Rows as float32 [N, size], and the error of each row, or None."""
    names = list(columns)
    nameless = list(frame.columns) == [str(place) for place in range(len(frame.columns))]
    if not names or nameless:
        names = [name for name in frame.columns if frame.is_numeric(name)]
        if len(names) != size:
            raise FedmtError(f"{frame.name}: {len(names)} columns of numbers; the model takes {size}.")
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise FedmtError(
            f"{frame.name}: no column {listed(missing)}, which the model needs; the columns are "
            f"{listed(frame.columns, 12)}."
        )
    values = np.stack([_lenient(frame, name) for name in names], 1)
    wrong = ~torch.from_numpy(values).float().isfinite().numpy()  # as the model sees them
    errors: list[str | None] = [None] * len(frame)
    for row in np.flatnonzero(wrong.any(1)).tolist():
        bad = [name for name, flag in zip(names, wrong[row], strict=True) if flag]
        errors[row] = f"{frame.place(row)}: no finite number in {listed(bad)}."
    return torch.from_numpy(values).float(), errors


def _lenient(frame: Frame, name: str) -> NDArray[np.float64]:
    """A column as numbers, with NaN for cells that are not numbers, so that one bad row does not prevent the
    others from being read."""
    cells = frame.column(name)
    if cells.dtype != object:
        return cells.astype(np.float64)

    def number(cell: str) -> float:
        try:
            return float(cell)
        except ValueError:
            return np.nan

    return np.array([number(cell) for cell in cells], dtype=np.float64)
