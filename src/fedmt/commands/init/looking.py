"""What a folder contains: centers with class folders, tables or arrays. They are read only as far as guessing
requires."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedmt.commands.init.found import Found, LeftOut, NameNotUTF8, NoImages, is_utf8, printable
from fedmt.commands.init.tables import look_at_rows, look_at_table
from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import class_name
from fedmt.data.sources.npz import read_labeled_vectors, read_npz
from fedmt.inputs.images.files import EXPECTED, images_below
from fedmt.inputs.images.looking import NOTHING_SEEN, look_at_array, look_at_images
from fedmt.inputs.images.shaping import AS_STORED
from fedmt.inputs.tabular import SUFFIXES
from fedmt.inputs.vectors.reading import vector_array

SPLIT_NAME = re.compile(r"(train(ing)?|test(ing)?|val(id(ation)?)?|hold.?out|held.?out)$", re.IGNORECASE)
TEST_NAME = re.compile(r"(test|hold.?out|held.?out|val(idation)?)([\W_\d]|$)", re.IGNORECASE)


def discover(folder: Path) -> tuple[list[Found], list[Found], list[LeftOut]]:
    """The centers and tests in `folder` (every folder of images, CSV and npz archive), and what is neither.

    If there are no images, tables of features are taken as the centers.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise FedmtError(
            f"{folder} {problem}. Give the folder that contains a folder or CSV for each center."
        )
    entries = sorted(e for e in folder.iterdir() if not e.name.startswith("."))
    tables = [e for e in entries if e.suffix.lower() in (".csv", ".npz") and e.is_file()]
    seen = [_tried(e.stem, e) for e in tables]
    belongs = {path for f in seen if isinstance(f, Found) for path in f.beside}  # these are not centers
    seen += [_tried(e.name, e) for e in entries if e.is_dir() and e not in belongs]
    if not any(isinstance(f, Found) for f in seen):
        rows = [e for e in entries if e.suffix.lower() in SUFFIXES and e.is_file()]
        tables = [*rows, *(e for e in tables if e not in rows)]
        besides = [one for one in seen if one.name not in {e.name for e in rows}]
        seen = [*(_tried(e.stem, e, look_at_rows) for e in rows), *besides]
    found = [f for f in seen if isinstance(f, Found)]
    left = [f for f in seen if isinstance(f, LeftOut)]
    # Configs are not data, and `init` itself may have written one here.
    others = [e for e in entries if not e.is_dir() and e not in tables and e.suffix.lower() != ".toml"]
    stray = [printable(e.name) for e in others if e not in belongs]
    if stray:
        left.append(LeftOut(listed(stray), "not in any center's folder or table"))
    if not found:
        reasons = "".join(f"\n  {one}" for one in left)
        raise FedmtError(
            f"{folder}: nothing in it looks like a center. Expected folders of images (one folder per "
            "class), CSVs that name images or hold texts, npz archives, or tables of features. If this is "
            f"itself one center, give its parent folder.{reasons}"
        )
    names = [f.name for f in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise FedmtError(
            f"{folder}: {listed(twice)} exists both as a folder and as a table. Name the centers with "
            "--center."
        )
    found.sort(key=lambda f: f.name)
    tests = [f for f in found if TEST_NAME.match(f.name)]
    return [f for f in found if not TEST_NAME.match(f.name)], tests, left


def look(name: str, path: Path) -> Found:
    """One center. Raises an error if the path holds nothing that fedmt can read."""
    if not is_utf8(path.name):
        raise NameNotUTF8(f"{printable(str(path))}: the name is not valid UTF-8. Rename it.")
    if path.is_dir():
        return _look_at_folder(name, path)
    if not path.exists():
        raise FedmtError(f"{path}: there is no such file or folder.")
    if path.suffix.lower() == ".npz":
        return look_at_npz(name, path)
    if path.suffix.lower() == ".csv":
        return look_at_table(name, path)
    raise FedmtError(f"{path}: this is neither a folder nor a .csv or .npz file.")


def look_at_any(name: str, path: Path) -> Found:
    """One center that the user named: images, or the rows of a table."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return look_at_rows(name, path)
    try:
        return look(name, path)
    except NoImages:
        return look_at_rows(name, path)


def _tried(name: str, path: Path, look: Callable[[str, Path], Found] = look) -> Found | LeftOut:
    """The reason why something is not a center. This is not an error in a folder of other centers: it may be
    an unrelated table or an empty folder."""
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
        nothing = f"{path}: it contains no images and no CSV of images; {EXPECTED}"
        raise FedmtError("; ".join([nothing, *unused]) + ".")
    seen = look_at_images(images)
    labels = [class_name(p.relative_to(path).parts[0]) for p in images if p.parent != path]
    columns = {"": labels}
    if len(useful) > 1:
        columns = {}
        unused.insert(
            0, f"it contains several CSVs ({listed(t.path.name for t in useful)}); choose one with --center"
        )
    elif len(labels) < len(images):
        columns = {}
        if labels:
            unused.append(
                "some images are next to the class folders, so this is taken as a center without labels"
            )
    elif all(SPLIT_NAME.match(label) for label in labels):
        columns = {}
        unused.append(
            f"its folders {listed(sorted(set(labels)))} are taken as parts of a split and not as classes, so "
            "this is taken as a center without labels. Give each part by itself: "
            f"--center {name}={printable(str(path))}/PART or --test {printable(str(path))}/PART"
        )
    elif len(set(labels)) == 1 and all(len(p.relative_to(path).parts) > 2 for p in images):
        columns = {}
        inner = printable(str(path / labels[0]))
        unused.append(
            f"its only folder '{printable(labels[0])}' has folders in it. If these are the classes, give it "
            f"as the center: --center {name}={inner}. Otherwise, this is a center without labels"
        )
    elif unused and len(set(labels)) == 1:
        columns = {}  # this is the folder with a table's images rather than a class
        unused.append(
            f"'{printable(labels[0])}' may not be a class, so this is taken as a center without labels"
        )
    odd = sorted({label for label in columns.get("", ()) if not is_utf8(label)})
    if odd:
        those = f"class folder{'s' if len(odd) > 1 else ''} {listed(map(printable, odd))}"
        raise NameNotUTF8(
            f"{path}: the {those} must have a valid UTF-8 name. Rename {('them' if len(odd) > 1 else 'it')}."
        )
    return Found(name, path, "folder", len(images), columns, seen=seen, notes=tuple(unused))


def _tables_in(name: str, path: Path) -> tuple[list[Found], list[str]]:
    """The tables in a center's folder that have images and labels, and the reasons why the others are not
    used."""
    useful, unused = [], []
    for entry in sorted(e for e in path.glob("*") if e.is_file() and not e.name.startswith(".")):
        if entry.suffix.lower() == ".npz":
            unused.append(
                f"'{printable(entry.name)}' in it is not used, because an archive is a center of its own "
                "(--center)"
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
    """An archive of images, or of vectors. Vectors are its array `vectors` or its only matrix."""
    array = vector_array(path)
    data = read_npz(path, AS_STORED) if array is None else read_labeled_vectors(path, array)
    columns = {}
    for space, labels in data.labels.items():
        classes = data.spaces[space].classes
        columns[""] = [classes[i] for i in labels.tolist()]
    seen = NOTHING_SEEN if array is not None else look_at_array(data.images)
    return Found(name, path, "npz", len(data), columns, seen=seen, array=array)
