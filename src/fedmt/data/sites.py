"""The site of each sample of a test set, so that a report can show results per site.

A site is whatever the data names in one column: a hospital, a scanner, a region. Sites change nothing in
training, and a run folder keeps only their names and results.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

import numpy as np

from fedmt.core.errors import FedmtError, listed
from fedmt.data.specs import SourceSpec
from fedmt.inputs.tabular import SUFFIXES, also, read_frame

MOST = 50
"""Maximum number of sites of one test set. More distinct values are probably patients rather than sites."""


def read_sites(spec: SourceSpec, count: int, where: str) -> tuple[str, ...]:
    """The site of each of the `count` samples, from a column of a table or an array of an archive."""
    assert spec.site_column is not None
    path, column = spec.path, spec.site_column
    suffix = "" if path is None else path.suffix.lower()
    if path is None or suffix not in (*SUFFIXES, ".npz"):
        raise FedmtError(
            f"{where}: site_column: source '{spec.source}' has no column '{column}'; list the samples in a "
            "manifest, a table or an .npz archive."
        )
    if suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as archive:
                if column not in archive.files:
                    raise FedmtError(
                        f"{path}: site_column: no array '{column}'; its arrays are {listed(archive.files)}."
                    )
                values = archive[column]
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise FedmtError(f"{path}: site_column: the array '{column}' cannot be read: {error}.") from None
        if values.ndim != 1:
            raise FedmtError(
                f"{path}: site_column: '{column}' has shape {values.shape}; expected one name per sample."
            )
        names = [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values.tolist()]
        places = [f"{path}, {column}[{i}]" for i in range(len(names))]
    else:
        frame = read_frame(path)
        names = frame.text(column)
        places = [frame.place(row) for row in range(len(frame))]
    return _checked(names, places, column, count, where)


def _checked(
    names: Sequence[str], places: Sequence[str], column: str, count: int, where: str
) -> tuple[str, ...]:
    if len(names) != count:
        raise FedmtError(
            f"{where}: site_column: '{column}' has {len(names):,} values for {count:,} samples; expected one "
            "value per sample."
        )
    empty = [place for name, place in zip(names, places, strict=True) if not name.strip()]
    if empty:
        raise FedmtError(
            f"{empty[0]}: the column '{column}' is empty{also(len(empty))}; fill in the site of each sample."
        )
    found = set(names)
    if len(found) > MOST:
        raise FedmtError(
            f"{where}: site_column: '{column}' has {len(found):,} different values, expected at most {MOST} "
            "sites. For what must stay together, such as a patient, use group_column."
        )
    return tuple(names)
