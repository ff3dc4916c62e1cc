"""What lies in a folder: centers with class folders, tables or arrays, read as far as guessing needs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from fedmt.data.folder import EXTENSIONS, images_below
from fedmt.data.imageset import AS_STORED
from fedmt.data.npz import read_npz
from fedmt.errors import FedmtError, listed

TEST_NAME = re.compile(r"(test|hold.?out|held.?out|val(idation)?)([\W_\d]|$)", re.IGNORECASE)
LIKELY = ("label", "labels", "class", "diagnosis", "dx", "category", "target", "type", "grade", "finding")
UNLIKELY = ("sex", "gender", "age", "split", "fold", "site", "center", "hospital", "patient", "id", "side")
SAMPLED = 20
"""Images of a center whose size and colour are looked at."""


@dataclass(frozen=True)
class Found:
    """Where images and labels lie, as a config says it.

    columns: the labels of every image by where they stand: a table's column; "" for class folders and arrays;
        empty where there are none. The most likely column is the first.
    sizes: (height, width) of some images; colour: whether any of them has it.
    beside: folders that a table's images lie in. notes: what was not clear, for the user.
    """

    name: str
    path: Path
    source: str
    images: int
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image_column: str = "image"
    root: Path | None = None
    sizes: tuple[tuple[int, int], ...] = ()
    colour: bool = False
    beside: frozenset[Path] = frozenset()
    notes: tuple[str, ...] = ()

    def classes(self, column: str) -> frozenset[str]:
        return frozenset(self.columns[column])


def discover(folder: Path) -> tuple[list[Found], list[Found]]:
    """Centers and tests: every folder of images, CSV and npz archive that lies in `folder`."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise FedmtError(f"{folder} {problem}; give the folder that has a folder or CSV for each center.")
    entries = sorted(e for e in folder.iterdir() if not e.name.startswith("."))
    tables = [e for e in entries if e.suffix.lower() in (".csv", ".npz") and e.is_file()]
    found = [f for f in (_tried(e.stem, e) for e in tables) if f is not None]
    belongs = {path for f in found for path in f.beside}  # no centers of their own
    for entry in entries:
        if entry.is_dir() and entry not in belongs:
            one = _tried(entry.name, entry)
            found += [one] if one is not None else []
    if not found:
        raise FedmtError(
            f"{folder}: nothing in it looks like a center; expected folders of images (a folder for each "
            "class), CSVs that name images and labels, or npz archives."
        )
    names = [f.name for f in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise FedmtError(
            f"{folder}: {listed(twice)} is there as a folder and as a table; name the centers with --center."
        )
    found.sort(key=lambda f: f.name)
    return [f for f in found if not TEST_NAME.match(f.name)], [f for f in found if TEST_NAME.match(f.name)]


def look(name: str, path: Path) -> Found:
    """One center; an error where its place holds nothing that fedmt reads."""
    if path.is_dir():
        return _look_at_folder(name, path)
    if not path.exists():
        raise FedmtError(f"{path}: there is no such file or folder.")
    if path.suffix.lower() == ".npz":
        return _look_at_npz(name, path)
    if path.suffix.lower() == ".csv":
        table = _look_at_table(name, path)
        if table is None:
            raise FedmtError(
                f"{path}: no column of this table names image files (*{', *'.join(EXTENSIONS[:3])}, …)."
            )
        return table
    raise FedmtError(f"{path}: neither a folder nor a .csv or .npz file.")


def _tried(name: str, path: Path) -> Found | None:
    """What is not a center among others is passed over: a table of something else, an empty folder."""
    try:
        return look(name, path)
    except FedmtError:
        return None


def _look_at_folder(name: str, path: Path) -> Found:
    tables = [_look_at_table(name, p) for p in sorted(path.glob("*.csv"))]
    useful = [t for t in tables if t is not None and t.columns]
    if len(useful) == 1:
        return useful[0]
    images = images_below(path)
    if not images:
        raise FedmtError(f"{path}: no images and no CSV of images in it.")
    sizes, colour = _sizes(images)
    labels = [p.relative_to(path).parts[0] for p in images if p.parent != path]
    notes: tuple[str, ...] = ()
    if len(useful) > 1:
        notes = (f"several CSVs lie in it ({listed(t.path.name for t in useful)}); name one with --center",)
    if len(labels) < len(images) or len(useful) > 1:
        if labels and not useful:
            notes = ("some images lie beside the class folders, so it is taken as a center without labels",)
        return Found(name, path, "folder", len(images), {}, sizes=sizes, colour=colour, notes=notes)
    return Found(name, path, "folder", len(images), {"": labels}, sizes=sizes, colour=colour)


def _look_at_npz(name: str, path: Path) -> Found:
    data = read_npz(path, AS_STORED)
    columns = {}
    for space, labels in data.labels.items():
        classes = data.spaces[space].classes
        columns[""] = [classes[i] for i in labels.tolist()]
    height, width = data.images.shape[2:]
    return Found(
        name, path, "npz", len(data), columns, sizes=((height, width),), colour=data.images.shape[1] == 3
    )


def _look_at_table(name: str, path: Path) -> Found | None:
    """A CSV as a center, or None where no column names images."""
    header, rows = _read(path)
    columns = {title: [row[i] for row in rows] for i, title in enumerate(header) if header.count(title) == 1}
    naming = [title for title, cells in columns.items() if _names_images(cells)]
    if not naming:
        return None
    image_column = "image" if "image" in naming else naming[0]
    names = columns.pop(image_column)
    notes: list[str] = []
    root = _root(path, names)
    if not (root / names[0]).exists():
        notes.append(f"its image '{names[0]}' was not found; set `root` to the folder that the images lie in")
    labels = {t: cells for t, cells in columns.items() if _is_label(cells)}
    gaps = [t for t, cells in columns.items() if t.casefold() in LIKELY and "" in cells]
    notes += [f"column '{t}' has empty cells; fill them in or remove the lines to use it" for t in gaps]
    ranked = sorted(labels, key=lambda t: (_likelihood(t), -len(set(labels[t]))))
    sizes, colour = _sizes(
        [p for p in (root / n for n in names[:: max(1, len(names) // SAMPLED)]) if p.exists()]
    )
    every = {t: labels[t] for t in ranked}
    beside = frozenset(root / Path(n).parts[0] for n in names if len(Path(n).parts) > 1) | {root}
    away = root if root != path.parent else None
    return Found(
        name, path, "manifest", len(rows), every, image_column, away, sizes, colour, beside, tuple(notes)
    )


def label_columns(found: Found) -> list[str]:
    """Where its labels may stand, the most likely first."""
    return list(found.columns)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedmtError(f"{path}: cannot read the table ({error}).") from None
    if len(lines) < 2:
        raise FedmtError(f"{path}: no lines below the header.")
    return lines[0], [row for row in lines[1:] if len(row) == len(lines[0])]


def _names_images(cells: Sequence[str]) -> bool:
    return bool(cells) and sum(c.lower().endswith(EXTENSIONS) for c in cells) >= 0.8 * len(cells)


def _is_label(cells: Sequence[str]) -> bool:
    """Every cell filled, and few different ones."""
    different = set(cells)
    return "" not in different and 2 <= len(different) <= max(2, min(200, len(cells) // 2))


def _likelihood(title: str) -> int:
    """0 for a title that says label, 2 for one that says something else, 1 for any other."""
    words = set(re.split(r"[\W_]+", title.casefold()))
    return 2 if words & set(UNLIKELY) else 0 if words & set(LIKELY) else 1


def _root(path: Path, names: Sequence[str]) -> Path:
    """The folder that the images lie in: the table's own, unless they are found in one beside it."""
    base = path.parent
    places = [base, base / "images", base / path.stem, base.parent, base.parent / "images"]
    return next((p for p in places if (p / names[0]).is_file()), base)


def _sizes(images: Iterable[Path]) -> tuple[tuple[tuple[int, int], ...], bool]:
    """(height, width) of some images, and whether any has colour; one that cannot be read is passed over."""
    files = list(images)
    sizes, colour = [], False
    for path in files[:: max(1, len(files) // SAMPLED)][:SAMPLED]:
        try:
            with Image.open(path) as image:
                sizes.append((image.height, image.width))
                colour |= image.mode not in ("1", "L", "LA", "La", "F") and not image.mode.startswith("I")
        except Exception:  # `fedmt check` names damaged files, with the place they were named at
            continue
    return tuple(sizes), colour
