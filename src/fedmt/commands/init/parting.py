"""Splits a table with the rows of all centers into one CSV per center, by a column that names the center."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmt.core.errors import FedmtError, listed
from fedmt.inputs.tabular import SUFFIXES, Frame, also, read_frame

PLACES = {"site", "center", "centre", "hospital", "clinic", "institution", "institute", "laboratory", "lab"}
MOST = 200
"""A column with more distinct values than this does not name centers."""


def part_by(path: Path, column: str, force: bool) -> Path:
    """Writes the rows of each value of `column` to a CSV of its own, in a new folder next to the table.

    The column itself is left out, because a model must not learn the center instead of the patient. The
    folder appears only when it is complete. Returns the folder.
    """
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        raise FedmtError(f"--by {column}: {path} is not a table. Give the .csv or .parquet file to split.")
    frame = read_frame(path)
    values = frame.text(column)
    empty = [row for row, value in enumerate(values) if not value]
    if empty:
        raise FedmtError(
            f"{frame.place(empty[0])}: the column '{column}' is empty{also(len(empty))}, so the row's center "
            "is unknown. Fill it in or remove the row."
        )
    files = _file_names(values, column, path)
    folder = path.with_name(f"{path.stem}-by-{_plain(column)}")
    if folder.exists() and not force:
        raise FedmtError(f"{folder} already exists. Replace it with --force, or move it away.")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _write(frame, values, files, column, part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except OSError as error:
        raise FedmtError(f"{folder}: cannot be written ({error.strerror or error}).") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _file_names(values: Sequence[str], column: str, path: Path) -> dict[str, str]:
    """The file of each center. Raises an error if the column does not name centers."""
    counts = Counter(values)
    if not 2 <= len(counts) <= min(MOST, len(values) // 2):
        raise FedmtError(
            f"{path}: column '{column}' has {len(counts):,} different values in {len(values):,} rows "
            f"({listed(counts, 3)}); expected one value per center, between 2 and {MOST} in total."
        )
    files = {value: f"{_plain(value)}.csv" for value in counts}
    same = [v for v in files if [f.casefold() for f in files.values()].count(files[v].casefold()) > 1]
    if same:
        raise FedmtError(
            f"{path}: the centers {listed(same)} in column '{column}' would share one file. If they are the "
            "same center, spell the name the same way everywhere. Otherwise, make the names more different."
        )
    return files


def _write(frame: Frame, values: Sequence[str], files: Mapping[str, str], column: str, folder: Path) -> None:
    titles = [title for title in frame.columns if title != column]
    cells = [frame.columns[t].tolist() if frame.columns[t].dtype == object else frame.text(t) for t in titles]
    rows: dict[str, list[Sequence[str]]] = {value: [] for value in files}
    for value, row in zip(values, zip(*cells, strict=True), strict=True):
        rows[value].append(row)
    for value, name in files.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(titles)
            writer.writerows(rows[value])


def _plain(name: str) -> str:
    return re.sub(r"[^\w .-]+", "-", name).strip(" .") or "-"


def how_to_part(path: Path) -> str:
    """A sentence that tells a user with one table what to do. It names the column that seems to hold the
    centers."""
    try:
        frame = read_frame(path)
        likely = [t for t in frame.columns if set(re.split(r"[\W_\d]+", t.casefold())) & PLACES]
        for title in likely:
            values = frame.text(title)
            if "" not in values and 2 <= len(set(values)) <= min(MOST, len(values) // 2):
                names = listed(dict.fromkeys(values), 4)
                command = shlex.join(["fedmt", "init", str(path), "--by", title])
                return f"Its column '{title}' seems to name the centers ({names}): `{command}` splits it."
    except FedmtError:
        pass  # what is wrong with it is reported when it is read
    return (
        f"If it has the rows of all centers and a column that names each row's center, `fedmt init {path} "
        "--by COLUMN` splits it."
    )
