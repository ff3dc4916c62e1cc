"""Describes an existing federation as the tables of a config, for runs on arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmt.data.center import Center, Federation
from fedmt.data.loading import derived_tests
from fedmt.data.sources.arrays import SUFFIX
from fedmt.inputs import INPUTS


def data_tables(federation: Federation, kept: Path | None = None) -> dict[str, Any]:
    """The keys of a config that describe the data, all with the source 'arrays'.

    kept: the folder where every center's arrays are stored. None: they are only in memory.
    """
    spaces = {space.name: list(space.classes) for space in federation.spaces}
    spaces |= {t.space.name: list(t.space.classes) for t in federation.tests if t.space is not None}
    tables: dict[str, Any] = {
        "input": INPUTS.name_of(type(federation.input)),
        "spaces": spaces,
        "wanted": federation.wanted.name,
        "centers": [],
        "tests": [],
    }
    for table, place, file in array_files(federation):
        entry: dict[str, Any] = {"source": "arrays", "name": place.name}
        if kept is not None:
            entry["path"] = str((kept / file).resolve())
        if table == "reference":
            tables[table] = entry
            continue
        if place.space is not None:
            entry["space"] = place.space.name
        known = place.correspondence
        if table == "centers" and known is not None and place.space != federation.wanted:
            entry["correspondence"] = known.to_mapping()
        tables[table].append(entry)
    return tables


def array_files(federation: Federation) -> Iterator[tuple[str, Center, str]]:
    """Every center and test with data of its own: its table in the config, itself, and its file's name."""
    yield "reference", federation.reference, f"reference{SUFFIX}"
    for number, center in enumerate(federation.centers, 1):
        yield "centers", center, f"center-{number}{SUFFIX}"
    for number, test in enumerate(own_tests(federation), 1):
        yield "tests", test, f"test-{number}{SUFFIX}"


def own_tests(federation: Federation) -> list[Center]:
    """The tests, without those that are derived from others and would be derived again from the same data."""
    first = [t for t in federation.tests if t.space == federation.wanted]
    derived = {t.name: t.space for t in derived_tests(first, federation.centers, federation.wanted, [])}
    shared = {id(t.values) for t in first}
    return [t for t in federation.tests if derived.get(t.name) != t.space or id(t.values) not in shared]
