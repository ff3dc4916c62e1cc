"""A CSV that names one image file and its label per line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedmt.core.errors import FedmtError, together
from fedmt.core.labels import LabelSpace, class_name
from fedmt.data.groups import group_numbers
from fedmt.data.sampleset import SampleSet, label_positions
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.images.decoding import depth_notes, read_images
from fedmt.inputs.images.files import located
from fedmt.inputs.images.shaping import ImageOptions
from fedmt.inputs.rows import table_rows


def read_manifest(
    path: str | Path,
    options: ImageOptions,
    space: LabelSpace | None = None,
    space_name: str = "labels",
    image_column: str = "image",
    label_column: str | None = "label",
    root: Path | None = None,
    group_column: str | None = None,
) -> SampleSet:
    """The images and labels that the comma-separated table `path` names, in its order.

    Image paths are absolute, or relative to `root`, which defaults to the table's own folder. A bare file
    name may also refer to a single file in a subfolder. Without `space` the sorted labels are the classes of
    a space called `space_name`. With `label_column=None` the set is unlabeled. An image that is listed again
    counts again, and a note gives their number. With another label, it is an error. `group_column` names what
    belongs together, such as a patient.
    """
    path = Path(path)
    base = path.parent if root is None else Path(root)
    asked = (image_column, label_column, group_column)
    columns = [column for column in asked if column is not None]
    kept_together: list[str] = []
    named, names, lines, where = [], [], [], []
    for line, cells in table_rows(path, columns):
        place = f"{path}, line {line}"
        for column, cell in zip(columns, cells, strict=True):
            if not cell:
                raise FedmtError(f"{place}: the column '{column}' is empty; fill it in or remove the line.")
        named.append(cells[0])
        if label_column is not None:
            names.append(class_name(cells[1]))
        if group_column is not None:
            kept_together.append(cells[-1])
        lines.append(line)
        where.append(place)
    if not named:
        raise FedmtError(f"{path}: no images; expected a line for each image below the header.")
    files = located(base, named)
    if len(files) > 1 and not any(file.exists() for file in files):
        raise FedmtError(
            f"{path}: none of its {len(files):,} images is in {base}; the first is '{named[0]}'. Set `root` "
            "to the folder that contains them."
        )
    groups = None if group_column is None else group_numbers(kept_together)
    if label_column is None:
        repeated = _repeated(files, None, lines, path)
        images = read_images(files, where, options)
        return SampleSet(images, notes=(*repeated, *depth_notes(files, str(path), options)), groups=groups)
    space = space or LabelSpace(space_name, sorted(set(names)))
    # Labels come first, because they are quick to check and decoding may take long.
    labels = label_positions(names, space, where)
    repeated = _repeated(files, names, lines, path)
    images = read_images(files, where, options)
    notes = (*repeated, *depth_notes(files, str(path), options))
    return SampleSet(images, {space.name: labels}, {space.name: space}, notes, groups=groups)


def _repeated(
    files: Sequence[Path], labels: Sequence[str] | None, lines: Sequence[int], table: Path
) -> tuple[str, ...]:
    """A note on files that are listed again. Raises an error if two lines give a file different labels."""
    first: dict[str, int] = {}
    problems = []
    for i, file in enumerate(files):
        j = first.setdefault(os.path.normpath(file), i)
        if labels is not None and labels[i] != labels[j]:
            problems.append(
                f"{table}, line {lines[i]}: image '{file}' has the label '{labels[i]}', but '{labels[j]}' on "
                f"line {lines[j]}; remove one of the two lines."
            )
    if problems:
        raise together(problems)
    again = len(files) - len(first)
    if not again:
        return ()
    count = "1 line repeats an image" if again == 1 else f"{again:,} lines repeat an image"
    return (f"{table}: {count} listed above, which then counts again. Remove unintended repetitions.",)


class Manifest(Source):
    """`path` is a CSV of image files and labels."""

    name = "manifest"

    def read(self, request: Request) -> SampleSet:
        spec = request.spec
        return read_manifest(
            request.path,
            request.images,
            request.space,
            image_column=spec.image_column,
            label_column=spec.label_column if request.space is not None else None,
            root=spec.root,
            group_column=spec.group_column,
        )
