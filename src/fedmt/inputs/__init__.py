"""What a sample is: one input per room. Images are the default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry, subclass_of
from fedmt.inputs.base import Input, Views
from fedmt.inputs.images import Images

INPUTS: Registry[type[Input]] = Registry(
    "input", {"images": Images}, subclass_of(Input, "fedmt.inputs.Input")
)

DEFAULT_INPUT = Images


def to_json(input: Input) -> dict[str, Any]:
    """An input as plain data, with the name that `from_json` finds its class by."""
    return {"name": INPUTS.name_of(type(input)), **dataclasses.asdict(input)}


def from_json(data: Mapping[str, Any], where: str) -> Input:
    """What `to_json` wrote; `where` begins the errors."""
    kind = INPUTS.find(data.get("name"), f"{where}: input")
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "name"}
    try:
        return kind(**fields)
    except TypeError as error:
        raise FedmtError(f"{where}: the input is not as fedmt writes it ({error}).") from None


__all__ = ["DEFAULT_INPUT", "INPUTS", "Images", "Input", "Views", "from_json", "to_json"]
