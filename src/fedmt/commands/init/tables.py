"""Tables as centers: CSVs that name images or hold texts, and tables of features."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmt.commands.init.found import Found, NoImages
from fedmt.commands.init.texts import longest, text_column
from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import class_name
from fedmt.data.identifiers import (
    group_column,
    group_columns,
    is_identifier,
    names_groups,
    site_column,
)
from fedmt.inputs.images.files import EXTENSIONS, located
from fedmt.inputs.images.looking import SAMPLED, look_at_images
from fedmt.inputs.rows import check_commas, table_lines
from fedmt.inputs.tabular import read_frame

LIKELY = ("label", "labels", "class", "diagnosis", "dx", "category", "target", "type", "grade", "finding")
UNLIKELY = ("sex", "gender", "age", "split", "fold", "site", "center", "hospital", "patient", "id", "side")


def look_at_table(name: str, path: Path) -> Found:
    header, lines = _read(path)
    rows = [line for line in lines if len(line) == len(header)]
    if not rows:
        raise FedmtError(f"{path}: no line of this table has as many cells as its header ({len(header)}).")
    columns = {title: [row[i] for row in rows] for i, title in enumerate(header) if header.count(title) == 1}
    naming = [title for title, cells in columns.items() if _names_images(cells)]
    prose = text_column(columns) if not naming else None
    if not naming and prose is None:
        raise NoImages(
            f"{path}: no column of this table names image files (*.jpg, *.png, …), and no column holds texts "
            "of several words."
        )
    notes: list[str] = []
    if len(rows) < len(lines):
        notes.append(
            f"lines with more or fewer cells than the header: {len(lines) - len(rows)}; correct or remove "
            "them"
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
        notes.append(
            f"its image '{names[0]}' was not found; set `root` to the folder that contains the images"
        )
    every = _labels(columns, notes)
    seen = look_at_images([p for p in files[:: max(1, len(files) // SAMPLED)] if p.exists()])
    base = Path(os.path.abspath(root))  # the table's own paths may be absolute
    within = [Path(os.path.abspath(p)) for p in files]
    within = [p.relative_to(base) for p in within if p.is_relative_to(base) and p != base]
    beside = frozenset(root / p.parts[0] for p in within) | {root}
    away = root if root != path.parent else None
    found = Found(name, path, "manifest", len(rows), every, image_column, away, seen, beside, tuple(notes))
    return _grouped(found, columns)


def _grouped(found: Found, columns: Mapping[str, Sequence[str]]) -> Found:
    return replace(
        found,
        group_column=group_column(columns),
        groupable=tuple(group_columns(columns)),
        site_column=site_column(columns),
    )


def _labels(columns: Mapping[str, Sequence[str]], notes: list[str]) -> dict[str, list[str]]:
    """The columns that look like labels, the most likely first. What is unclear is added to `notes`."""
    identifying = [t for t, cells in columns.items() if is_identifier(cells) or names_groups(t, cells)]
    group = group_column(columns)
    notes += _gaps(columns) if group is None else []
    labels = {
        t: [*map(class_name, cells)]
        for t, cells in columns.items()
        if t not in identifying and _is_label(cells)
    }
    gaps = _label_gaps(columns)
    notes += gaps
    if columns and not labels and not gaps:
        notes.append(
            f"none of its columns ({listed(columns)}) looks like labels, which means two or more values "
            "that repeat"
        )
    return {t: labels[t] for t in sorted(labels, key=lambda t: (_likelihood(t), -len(set(labels[t]))))}


def _label_gaps(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on columns whose titles say that they hold labels, but which are not used because of missing
    values."""
    return [
        f"column '{t}' has empty cells; fill them in or remove the lines to use it"
        for t, cells in columns.items()
        if t.casefold() in LIKELY and "" in cells and any(cells)
    ]


def _gaps(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on columns that would name groups if their empty cells were filled in."""
    return [
        f"column '{t}' has empty cells; fill them in to keep its groups together (group_column)"
        for t, cells in columns.items()
        if "" in cells and names_groups(t, cells)
    ]


def look_at_rows(name: str, path: Path) -> Found:
    """A center whose samples are the rows of a table. The labels are in a column with a title such as
    'label', or else in the last column that could hold them. Every other column is a feature or an
    identifier. Numbers may differ in every row, so a numeric column counts as the name of a patient only by
    its title. The statistics leave out columns that number the rows."""
    frame = read_frame(path)
    text = {title: frame.text(title) for title in frame.columns}
    identifying = tuple(title for title, cells in text.items() if names_groups(title, cells))
    able = [title for title in text if title not in identifying and _is_label(text[title])]
    called = [title for title in able if _likelihood(title) == 0]
    columns = called or [t for t in able if _likelihood(t) == 1 and not frame.is_numeric(t)][-1:]
    others = [
        t for t in able if t not in columns and not any("." in cell for cell in text[t])
    ]  # these are not measurements
    telling = tuple(t for t in others if _is_telling(text[t], text, columns))
    if len(text) == len(columns) + len(telling) + len(identifying):  # then it is more likely a coincidence
        telling = ()
    ranked = [t for some in (columns, telling) for t in sorted(some, key=lambda t: -len(set(text[t])))]
    if len(text) - len(ranked) - len(identifying) < 1:
        raise FedmtError(f"{path}: this table has no feature columns in addition to its labels.")
    labels = {title: [*map(class_name, text[title])] for title in ranked}
    notes = (*(() if group_column(text) else _gaps(text)), *_label_gaps(text))
    found = Found(name, path, "table", len(frame), labels, notes=notes, identifiers=identifying)
    features = tuple(t for t in text if t not in ranked and t not in identifying)
    return _grouped(replace(found, telling=telling, features=features), text)


def _is_telling(cells: Sequence[str], text: Mapping[str, Sequence[str]], labels: Sequence[str]) -> bool:
    """Whether a column always determines a label, or a label determines it: the same information in coarser
    or finer classes. As a feature, it would give the answer away."""
    for label in labels:
        pairs = set(zip(cells, text[label], strict=True))
        one, two = len(set(cells)), len(set(text[label]))
        if len(pairs) == max(one, two) and len(cells) >= 5 * len(pairs):
            return True
    return False


def agreed(found: Sequence[Found]) -> list[Found]:
    """A column that determines the label by coincidence in a small table is a feature in a larger one."""
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


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    lines = [cells for _, cells in table_lines(path)]
    if not lines:
        raise FedmtError(f"{path}: the table is empty.")
    check_commas(lines[0], path)
    if len(lines) < 2:
        raise FedmtError(f"{path}: no lines below the header.")
    return lines[0], lines[1:]


def _names_images(cells: Sequence[str]) -> bool:
    return bool(cells) and sum(c.lower().endswith(EXTENSIONS) for c in cells) >= 0.8 * len(cells)


def _is_label(cells: Sequence[str]) -> bool:
    """Whether every cell is filled and there are few distinct values."""
    different = set(cells)
    return "" not in different and 2 <= len(different) <= max(2, min(200, len(cells) // 2))


def _likelihood(title: str) -> int:
    """0 for a title that means label, 2 for a title that means something else, 1 for any other."""
    words = set(re.split(r"[\W_]+", title.casefold()))
    return 2 if words & set(UNLIKELY) else 0 if words & set(LIKELY) else 1


def _root(path: Path, names: Sequence[str]) -> Path:
    """The folder that contains the images: the table's own folder, unless they are found in one next to
    it."""
    base = path.parent
    places = [base, base / "images", base / path.stem, base.parent, base.parent / "images"]
    return next((p for p in places if (p / names[0]).is_file()), base)
