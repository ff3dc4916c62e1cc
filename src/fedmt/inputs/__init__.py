"""What a sample is: one input per room. Images are the default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry, subclass_of
from fedmt.inputs.base import Input, Views
from fedmt.inputs.images import Images
from fedmt.inputs.tables import Tables
from fedmt.inputs.vectors import Vectors

INPUTS: Registry[type[Input]] = Registry(
    "input",
    {"images": Images, "vectors": Vectors, "tables": Tables, "text": "fedmt.inputs.text:Text"},
    subclass_of(Input, "fedmt.inputs.Input"),
)

DEFAULT_INPUT = Images


def to_json(input: Input) -> dict[str, Any]:
    """An input as plain data, with the name by which `from_json` finds its class. None values are
    left out."""
    values = {key: value for key, value in dataclasses.asdict(input).items() if value is not None}
    return {"name": INPUTS.name_of(type(input)), **values}


def from_json(data: Mapping[str, Any]) -> Input:
    """Reads what `to_json` wrote."""
    kind = INPUTS.find(data.get("name"), "input")
    try:
        return TypeAdapter(kind).validate_python({k: v for k, v in data.items() if k != "name"})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, ("input", *first["loc"])))
        raise FedmtError(f"'{key}' is missing or does not have fedmt's format ({first['msg']}).") from None


__all__ = ["DEFAULT_INPUT", "INPUTS", "Images", "Input", "Tables", "Vectors", "Views", "from_json", "to_json"]
