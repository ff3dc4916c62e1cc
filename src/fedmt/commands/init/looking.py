"""What lies in a folder: centers with class folders, tables or arrays, read as far as guessing needs."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedmt.commands.init.identifiers import group_column, group_columns, is_identifier, names_groups
from fedmt.commands.init.texts import longest, text_column
from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import class_name
from fedmt.data.sources.npz import read_labeled_vectors, read_npz
from fedmt.inputs.images.files import EXPECTED, EXTENSIONS, images_below, located
from fedmt.inputs.images.looking import NOTHING_SEEN, SAMPLED, Seen, look_at_array, look_at_images
from fedmt.inputs.images.shaping import AS_STORED
from fedmt.inputs.tabular import SUFFIXES, read_frame
from fedmt.inputs.vectors.reading import vector_array

TEST_NAME = re.compile(r"(test|hold.?out|held.?out|val(idation)?)([\W_\d]|$)", re.IGNORECASE)
LIKELY = ("label", "labels", "class", "diagnosis", "dx", "category", "target", "type", "grade", "finding")
UNLIKELY = ("sex", "gender", "age", "split", "fold", "site", "center", "hospital", "patient", "id", "side")


@dataclass(frozen=True)
class Found:
    """Where images and labels lie, as a config says it.

    columns: the labels of every image by where they stand: a table's column; "" for class folders and arrays;
        empty where there are none. The most likely column is the first.
    seen: what a look at some of the images told.
    beside: folders that a table's images lie in. notes: what was not clear, for the user.
    array: of an archive of vectors, the name of these.
    text_column: where the texts stand in a table of texts; words: a length that nearly all of them fit in.
    group_column: of what must stay together, such as a patient. groupable: all columns that could be it.
    identifiers: columns of a table of features that name a row or what it belongs to; features: all others
        but the labels; telling: those of the labels that are some only since they tell another label.
    """

    name: str
    path: Path
    source: str
    images: int
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image_column: str = "image"
    root: Path | None = None
    seen: Seen = NOTHING_SEEN
    beside: frozenset[Path] = frozenset()
    notes: tuple[str, ...] = ()
    group_column: str | None = None
    groupable: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    telling: tuple[str, ...] = ()
    text_column: str | None = None
    words: int = 0
    array: str | None = None

    @property
    def word(self) -> str:
        """What its samples are called."""
        if self.text_column is not None:
            return "texts"
        if self.array is not None:
            return "vectors"
        return "rows" if self.source == "table" else "images"

    def classes(self, column: str) -> frozenset[str]:
        return frozenset(self.columns[column])


@dataclass(frozen=True)
class LeftOut:
    """What lies among the centers and is none, and why: nothing is passed over without a word."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: left out: {self.reason}."


class NoImages(FedmtError):
    """Of a table that names none: it may be a table of features."""


class NameNotUTF8(FedmtError):
    """Of a class or a center. No TOML file can hold the name, and without it labels would be lost."""


def discover(folder: Path) -> tuple[list[Found], list[Found], list[LeftOut]]:
    """Centers and tests: every folder of images, CSV and npz archive in `folder`; and what is neither.

    Where there is no image, tables of features are the centers.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise FedmtError(f"{folder} {problem}; give the folder that has a folder or CSV for each center.")
    entries = sorted(e for e in folder.iterdir() if not e.name.startswith("."))
    tables = [e for e in entries if e.suffix.lower() in (".csv", ".npz") and e.is_file()]
    seen = [_tried(e.stem, e) for e in tables]
    belongs = {path for f in seen if isinstance(f, Found) for path in f.beside}  # no centers of their own
    seen += [_tried(e.name, e) for e in entries if e.is_dir() and e not in belongs]
    if not any(isinstance(f, Found) for f in seen):
        rows = [e for e in entries if e.suffix.lower() in SUFFIXES and e.is_file()]
        tables = [*rows, *(e for e in tables if e not in rows)]
        besides = [one for one in seen if one.name not in {e.name for e in rows}]
        seen = [*(_tried(e.stem, e, look_at_rows) for e in rows), *besides]
    found = [f for f in seen if isinstance(f, Found)]
    left = [f for f in seen if isinstance(f, LeftOut)]
    # Configs are no data, and init itself may have written one here.
    others = [e for e in entries if not e.is_dir() and e not in tables and e.suffix.lower() != ".toml"]
    stray = [printable(e.name) for e in others if e not in belongs]
    if stray:
        left.append(LeftOut(listed(stray), "in no center's folder or table"))
    if not found:
        reasons = "".join(f"\n  {one}" for one in left)
        raise FedmtError(
            f"{folder}: nothing in it looks like a center; expected folders of images (a folder for each "
            f"class), CSVs that name images or hold texts, npz archives, or tables of features. If it is "
            f"itself one center, give the folder that it lies in.{reasons}"
        )
    names = [f.name for f in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise FedmtError(
            f"{folder}: {listed(twice)} is there as a folder and as a table; name the centers with --center."
        )
    found.sort(key=lambda f: f.name)
    tests = [f for f in found if TEST_NAME.match(f.name)]
    return [f for f in found if not TEST_NAME.match(f.name)], tests, left


def look(name: str, path: Path) -> Found:
    """One center; an error where its place holds nothing that fedmt reads."""
    if not is_utf8(path.name):
        raise NameNotUTF8(f"{printable(str(path))}: this name is not in UTF-8; rename it.")
    if path.is_dir():
        return _look_at_folder(name, path)
    if not path.exists():
        raise FedmtError(f"{path}: there is no such file or folder.")
    if path.suffix.lower() == ".npz":
        return look_at_npz(name, path)
    if path.suffix.lower() == ".csv":
        return _look_at_table(name, path)
    raise FedmtError(f"{path}: neither a folder nor a .csv or .npz file.")


def look_at_any(name: str, path: Path) -> Found:
    """One center that the user named: images, or the rows of a table."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return look_at_rows(name, path)
    try:
        return look(name, path)
    except NoImages:
        return look_at_rows(name, path)


def _tried(name: str, path: Path, look: Callable[[str, Path], Found] = look) -> Found | LeftOut:
    """What is not a center need not be an error among others: a table of something else, an empty folder."""
    try:
        return look(name, path)
    except NameNotUTF8:
        raise
    except FedmtError as error:
        return LeftOut(path.name, str(error).removeprefix(f"{path}: ").removesuffix("."))


def _look_at_folder(name: str, path: Path) -> Found:
    useful, unused = _tables_in(name, path)
    if len(useful) == 1:
        return replace(useful[0], notes=(*useful[0].notes, *unused))
    images = images_below(path)
    if not images:
        nothing = f"{path}: no images and no CSV of images in it; {EXPECTED}"
        raise FedmtError("; ".join([nothing, *unused]) + ".")
    seen = look_at_images(images)
    labels = [class_name(p.relative_to(path).parts[0]) for p in images if p.parent != path]
    columns = {"": labels}
    if len(useful) > 1:
        columns = {}
        unused.insert(
            0, f"several CSVs lie in it ({listed(t.path.name for t in useful)}); name one with --center"
        )
    elif len(labels) < len(images):
        columns = {}
        if labels:
            unused.append(
                "some images lie beside the class folders, so it is taken as a center without labels"
            )
    elif unused and len(set(labels)) == 1:
        columns = {}  # the folder that a table's images lie in, rather than a class
        unused.append(f"'{printable(labels[0])}' may be no class, so it is taken as a center without labels")
    odd = sorted({label for label in columns.get("", ()) if not is_utf8(label)})
    if odd:
        those = f"class folder{'s' if len(odd) > 1 else ''} {listed(map(printable, odd))}"
        raise NameNotUTF8(
            f"{path}: the {those} must have a name in UTF-8; rename {'them' if len(odd) > 1 else 'it'}."
        )
    return Found(name, path, "folder", len(images), columns, seen=seen, notes=tuple(unused))


def _tables_in(name: str, path: Path) -> tuple[list[Found], list[str]]:
    """The tables in a center's folder that have images and labels, and why the others are not used."""
    useful, unused = [], []
    for entry in sorted(e for e in path.glob("*") if e.is_file() and not e.name.startswith(".")):
        if entry.suffix.lower() == ".npz":
            unused.append(
                f"'{printable(entry.name)}' in it is not used: an archive is a center of its own (--center)"
            )
        if entry.suffix.lower() != ".csv":
            continue
        table = _tried(name, entry)
        if isinstance(table, LeftOut):
            unused.append(f"'{entry.name}' in it is not used: {table.reason}")
        elif table.columns:
            useful.append(table)
        else:
            unused.append(f"'{entry.name}' in it is not used: {'; '.join(table.notes) or 'it has no labels'}")
    return useful, unused


def look_at_npz(name: str, path: Path) -> Found:
    """An archive of images, or of vectors: then they are called `vectors`, or are its only matrix."""
    array = vector_array(path)
    data = read_npz(path, AS_STORED) if array is None else read_labeled_vectors(path, array)
    columns = {}
    for space, labels in data.labels.items():
        classes = data.spaces[space].classes
        columns[""] = [classes[i] for i in labels.tolist()]
    seen = NOTHING_SEEN if array is not None else look_at_array(data.images)
    return Found(name, path, "npz", len(data), columns, seen=seen, array=array)


def _look_at_table(name: str, path: Path) -> Found:
    header, lines = _read(path)
    rows = [line for line in lines if len(line) == len(header)]
    if not rows:
        raise FedmtError(f"{path}: no line of this table has as many cells as its header ({len(header)}).")
    columns = {title: [row[i] for row in rows] for i, title in enumerate(header) if header.count(title) == 1}
    naming = [title for title, cells in columns.items() if _names_images(cells)]
    prose = text_column(columns) if not naming else None
    if not naming and prose is None:
        raise NoImages(
            f"{path}: no column of this table names image files (*.jpg, *.png, …), and none holds texts of "
            "several words."
        )
    notes: list[str] = []
    if len(rows) < len(lines):
        notes.append(
            f"lines with more or fewer cells than the header: {len(lines) - len(rows)}; mend or remove them"
        )
    if prose is not None:
        words = longest(columns.pop(prose))
        every = _labels(columns, notes)
        found = Found(
            name, path, "text", len(rows), every, notes=tuple(notes), text_column=prose, words=words
        )
        return _grouped(found, columns)
    image_column = "image" if "image" in naming else naming[0]
    names = columns.pop(image_column)
    root = _root(path, names)
    files = located(root, names)
    if not files[0].exists():
        notes.append(f"its image '{names[0]}' was not found; set `root` to the folder that the images lie in")
    every = _labels(columns, notes)
    seen = look_at_images([p for p in files[:: max(1, len(files) // SAMPLED)] if p.exists()])
    within = [p.relative_to(root) for p in files if p.is_relative_to(root) and p != root]
    beside = frozenset(root / p.parts[0] for p in within) | {root}
    away = root if root != path.parent else None
    found = Found(name, path, "manifest", len(rows), every, image_column, away, seen, beside, tuple(notes))
    return _grouped(found, columns)


def _grouped(found: Found, columns: Mapping[str, Sequence[str]]) -> Found:
    return replace(found, group_column=group_column(columns), groupable=tuple(group_columns(columns)))


def _labels(columns: Mapping[str, Sequence[str]], notes: list[str]) -> dict[str, list[str]]:
    """The columns that look like labels, the most likely first; what is not clear goes to `notes`."""
    identifying = [t for t, cells in columns.items() if is_identifier(cells) or names_groups(t, cells)]
    group = group_column(columns)
    notes += _gaps(columns) if group is None else []
    labels = {
        t: [*map(class_name, cells)]
        for t, cells in columns.items()
        if t not in identifying and _is_label(cells)
    }
    gaps = [t for t, cells in columns.items() if t.casefold() in LIKELY and "" in cells]
    notes += [f"column '{t}' has empty cells; fill them in or remove the lines to use it" for t in gaps]
    if columns and not labels and not gaps:
        notes.append(f"none of its columns ({listed(columns)}) looks like labels: two or more, that repeat")
    return {t: labels[t] for t in sorted(labels, key=lambda t: (_likelihood(t), -len(set(labels[t]))))}


def _gaps(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on columns that would name groups, if they were filled in."""
    return [
        f"column '{t}' has empty cells; fill them in to keep its groups together (group_column)"
        for t, cells in columns.items()
        if "" in cells and names_groups(t, cells)
    ]


def look_at_rows(name: str, path: Path) -> Found:
    """A center whose samples are the rows of a table. Labels: in a column that is called so, else in the last
    one that could be; every other column is a feature, or an identifier. Numbers may differ in every row, so
    of them the title decides what names a patient; the statistics leave out what numbers the rows."""
    frame = read_frame(path)
    text = {title: frame.text(title) for title in frame.columns}
    identifying = tuple(title for title, cells in text.items() if names_groups(title, cells))
    able = [title for title in text if title not in identifying and _is_label(text[title])]
    called = [title for title in able if _likelihood(title) == 0]
    columns = called or [t for t in able if _likelihood(t) == 1 and not frame.is_numeric(t)][-1:]
    others = [t for t in able if t not in columns and not any("." in cell for cell in text[t])]  # no measures
    telling = tuple(t for t in others if _is_telling(text[t], text, columns))
    if len(text) == len(columns) + len(telling) + len(identifying):  # then rather by chance
        telling = ()
    ranked = [t for some in (columns, telling) for t in sorted(some, key=lambda t: -len(set(text[t])))]
    if len(text) - len(ranked) - len(identifying) < 1:
        raise FedmtError(f"{path}: this table has no columns of features next to its labels.")
    labels = {title: [*map(class_name, text[title])] for title in ranked}
    notes = () if group_column(text) else tuple(_gaps(text))
    found = Found(name, path, "table", len(frame), labels, notes=notes, identifiers=identifying)
    features = tuple(t for t in text if t not in ranked and t not in identifying)
    return _grouped(replace(found, telling=telling, features=features), text)


def _is_telling(cells: Sequence[str], text: Mapping[str, Sequence[str]], labels: Sequence[str]) -> bool:
    """Whether a column tells a label without fail, or a label tells it: the same in coarser or finer classes.
    As a feature it would give the answer away."""
    for label in labels:
        pairs = set(zip(cells, text[label], strict=True))
        one, two = len(set(cells)), len(set(text[label]))
        if len(pairs) == max(one, two) and len(cells) >= 5 * len(pairs):
            return True
    return False


def agreed(found: Sequence[Found]) -> list[Found]:
    """A column that tells the label by chance, in a small table, is a feature where there are more rows."""
    told = {title for one in found for title in one.telling}
    by_chance = {
        title
        for title in told
        if sum(one.images for one in found if title in one.features)
        >= sum(one.images for one in found if title in one.telling)
    }
    return [
        replace(one, columns={t: cells for t, cells in one.columns.items() if t not in dropped})
        if (dropped := by_chance & set(one.telling))
        else one
        for one in found
    ]


def is_utf8(name: str) -> bool:
    """Whether a file's name can be written down. Python keeps bytes that are not UTF-8 as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def printable(name: str) -> str:
    """A file's name for a message: bytes that are not UTF-8 are escaped, as in `n\\xe6vus`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def label_columns(found: Found) -> list[str]:
    """Where its labels may stand, the most likely first."""
    return list(found.columns)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if any(map(str.strip, row))]
    except UnicodeDecodeError:
        raise FedmtError(f"{path}: the table is not in UTF-8; save it as 'CSV UTF-8'.") from None
    except (OSError, csv.Error) as error:
        raise FedmtError(f"{path}: cannot read the table ({error}).") from None
    if not lines:
        raise FedmtError(f"{path}: the table is empty.")
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(lines[0]) == 1 and sign in lines[0][0]:
            raise FedmtError(f"{path}: the table is separated by {name}; save it separated by commas.")
    if len(lines) < 2:
        raise FedmtError(f"{path}: no lines below the header.")
    return lines[0], lines[1:]


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
