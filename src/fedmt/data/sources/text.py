"""A CSV with a column of texts, and with labels in one column or in several, one for each label space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedmt.core.errors import FedmtError, together
from fedmt.core.labels import LabelSpace, class_name
from fedmt.data.groups import group_numbers
from fedmt.data.sampleset import SampleSet, label_positions
from fedmt.data.sources.base import Request, Source
from fedmt.inputs.rows import table_rows
from fedmt.inputs.text import Text, TextSpec
from fedmt.inputs.text.asking import COLUMN, NO_WORDS

SNIPPET = 300
"""Number of characters of a text that a report shows."""


def read_text(
    path: str | Path,
    input: Text,
    spaces: Mapping[str, LabelSpace | None],
    label_columns: Mapping[str, str],
    text_column: str = COLUMN,
    group_column: str | None = None,
) -> SampleSet:
    """The texts of the comma-separated table `path`, hashed as `input` says, in its order.

    label_columns: the column of each label space's labels, by the space's name; empty for unlabeled texts.
    spaces: the known spaces. For any other space, the classes are its sorted labels. group_column: names what
    belongs together, such as a patient. All empty cells and all texts without words are reported at once.
    """
    path = Path(path)
    columns = [text_column, *label_columns.values(), *([] if group_column is None else [group_column])]
    rows, problems = [], []
    for line, cells in table_rows(path, columns):
        rows.append((line, cells))
        problems += [
            f"{path}, line {line}: the column '{column}' is empty; fill it in or remove the line."
            for column, cell in zip(columns, cells, strict=True)
            if not cell
        ]
    if not rows and not problems:
        raise FedmtError(f"{path}: no texts; expected a line for each text below the header.")
    if problems:
        raise together(problems)
    where = [f"{path}, line {line}" for line, _ in rows]
    # Labels come first, because they are quick to check and hashing may take longer.
    found: dict[str, LabelSpace] = {}
    labels: dict[str, Tensor] = {}
    for number, name in enumerate(label_columns, 1):
        names = [class_name(cells[number]) for _, cells in rows]
        found[name] = spaces.get(name) or LabelSpace(name, sorted(set(names)))
        labels[name] = label_positions(names, found[name], where)
    texts = [cells[0] for _, cells in rows]
    hashed = input.hashed(texts)
    empty = (hashed.words == 0).nonzero().flatten().tolist()
    if empty:
        raise together([f"{where[i]}: the text '{texts[i][:40]}' has {NO_WORDS}." for i in empty])
    groups = None if group_column is None else group_numbers([cells[-1] for _, cells in rows])
    snippets = tuple(t if len(t) <= SNIPPET else t[: SNIPPET - 1] + "…" for t in texts)
    notes = _cut(path, hashed.words, input.shape[1])
    return SampleSet(hashed.samples, labels, found, notes, input, snippets, groups)


def _cut(path: Path, words: Tensor, length: int) -> tuple[str, ...]:
    """A note on texts that are too long."""
    longer = int((words > length).sum())
    if not longer:
        return ()
    texts = "1 text has" if longer == 1 else f"{longer:,} texts have"
    return (
        f"{path}: {texts} more than {length} words, up to {int(words.max()):,}; only the first {length} "
        "are read (text.length).",
    )


class TextTable(Source):
    """`path` is a CSV with texts in `text_column`, and labels in `label_column` or in `label_columns`."""

    name = "text"
    input = "text"

    def read(self, request: Request) -> SampleSet:
        spec, space = request.spec, request.space
        assert isinstance(request.options, TextSpec)
        columns = spec.label_columns
        if columns is None:
            columns = {} if space is None else {space.name: spec.label_column}
        return read_text(
            request.path,
            request.options.input(),
            {} if space is None else {space.name: space},
            columns,
            spec.text_column or COLUMN,
            spec.group_column,
        )
