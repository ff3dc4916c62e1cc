"""Named settings of whole config tables. Each method defines its own (`Method.presets`)."""

from __future__ import annotations

from typing import Any

from fedmt.config.errors import Origin
from fedmt.config.schema import NAMED
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.methods import METHODS


def with_preset(raw: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """The config with the preset's values for its method. The config's own values take precedence."""
    name = raw.get("preset")
    if name is None:
        return raw
    try:
        method = METHODS.find(_method(raw), "method.name")
    except FedmtError:
        method = None  # validation will report this error
    every = [*METHODS.values()] if method is None else [method, *METHODS.values()]
    known = list(dict.fromkeys(preset for each in every for preset in each.presets))
    if not isinstance(name, str) or name not in known:
        raise FedmtError(
            f"{origin.place('preset')}preset: no preset {name!r}.{nearest(str(name), known)} "
            f"Known: {listed(known)}."
        )
    if method is None:
        return raw
    if name not in method.presets:
        own = f"It has {listed(method.presets)}." if method.presets else "It has none; remove the key."
        raise FedmtError(
            f"{origin.place('preset')}preset: method '{_method(raw)}' has no preset '{name}'. {own}"
        )
    merged = dict(raw)
    for section, values in method.presets[name].items():
        own_values = raw.get(section, {})
        if not isinstance(own_values, dict):
            continue  # validation will report this error
        if section == "aggregation" and own_values.get("name", values["name"]) != values["name"]:
            continue  # the options of one strategy do not apply to another
        merged[section] = {**values, **own_values}
    return merged


def _method(raw: dict[str, Any]) -> object:
    """The name of the config's method."""
    own = raw.get("method", {})
    return own.get("name", NAMED["method"][0]) if isinstance(own, dict) else None
