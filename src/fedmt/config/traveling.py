"""Which parts of a config travel to the centers of a run between machines, and which stay with the
coordinator.

Every key of the config declares which of the two it does: `Travels[int]` or `Stays[str]`. A table that
travels declares it for each of its keys in turn. A key that declares neither is an error when the schema is
imported. A new table therefore cannot be forgotten and silently fall back to its defaults at every center.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from fedmt.core.section import STAYS, TRAVELS, Section


def for_centers(schema: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config, or of one of its tables, that travel."""
    found: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        if name not in values or not _travels(schema, name, field):
            continue
        table = _table(field.annotation)
        found[name] = values[name] if table is None else for_centers(table, values[name])
    return found


def check_marks(schema: type[Section]) -> None:
    """Rejects a schema with a key that does not declare whether it travels."""
    for name, field in schema.model_fields.items():
        table = _table(field.annotation)
        if _travels(schema, name, field) and table is not None:
            check_marks(table)


def _travels(schema: type[Section], name: str, field: FieldInfo) -> bool:
    marks = [mark for mark in field.metadata if mark in (TRAVELS, STAYS)]
    if len(marks) != 1:
        raise TypeError(f"{schema.__name__}.{name} must declare whether it Travels to the centers or Stays.")
    return TRAVELS in marks


def _table(annotation: Any) -> type[Section] | None:
    """The table that a key holds, even if it is optional. None for a value, which travels whole."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        kinds = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        annotation = kinds[0] if len(kinds) == 1 else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None
