"""A config with a different method than the one it names, as trained by `fedmt run --method` and
`--baseline`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedmt.config.adapting import adapted_defaults
from fedmt.config.building import accepts
from fedmt.config.errors import Origin
from fedmt.config.parsing import override, parse_config, read_config
from fedmt.config.schema import NAMED, Config
from fedmt.core.registry import option_names
from fedmt.methods import METHODS
from fedmt.methods.training import Training


def load_variant(
    path: str | Path,
    overrides: list[str] | None = None,
    method: str | None = None,
    baseline: str | None = None,
) -> tuple[Config, list[str]]:
    """A TOML config with another method, and notes on the settings in the file that were left out for it.

    method: chosen before `overrides`, which may then set its options. baseline: chosen after them, so that
    options that `overrides` set for the method do not apply to the baseline.
    """
    path = Path(path)
    raw, text = read_config(path)
    notes = _choose(raw, method, f"--method {method}") if method is not None else []
    keys = tuple(override(raw, item) for item in overrides or [])
    if baseline is not None:
        notes += _choose(raw, baseline, f"--baseline {baseline}", keys)
    return parse_config(raw, Origin(path, text, keys)), notes


def _choose(
    raw: dict[str, Any], name: str, asked: str, overridden: Collection[tuple[str, ...]] = ()
) -> list[str]:
    """Changes the config's method. Options that the new method does not have, values that only the former
    method accepts, and tables that the new one rejects are left out, with a note.

    overridden: the keys that --set gave, whose values were chosen.
    """
    chosen = METHODS.find(name, asked)
    own = raw.get("method", {})
    if not isinstance(own, dict):
        return []  # parsing will report this error
    before = own.get("name", NAMED["method"][0])
    if name == before:
        raw["method"] = {**own, "name": name}
        return []
    former = METHODS.get(before, chosen)  # parsing reports an unknown method
    _leave_out_defaults(raw, former, overridden)
    own = raw.get("method", {})
    known = {"name", *option_names(chosen)}
    left = [f"method.{key}" for key in own if key not in known]
    for key, value in own.items():
        # If the former method rejects the value too, parsing reports it.
        if key in known - {"name"} and accepts(former, key, value) and not accepts(chosen, key, value):
            left.append(f"method.{key}")
    raw["method"] = {key: value for key, value in own.items() if f"method.{key}" not in left} | {"name": name}
    if "aggregation" in raw and not chosen.schedule.centers_train:
        del raw["aggregation"]
        left.append("[aggregation]")
    if "preset" in raw and raw["preset"] not in chosen.presets:
        left.append(f"preset = {raw.pop('preset')!r}")
    if not left:
        return []
    return [f"{asked}: left out {', '.join(left)}, which the config sets for '{before}'."]


def _leave_out_defaults(raw: dict[str, Any], former: type, overridden: Collection[tuple[str, ...]]) -> None:
    """Removes the former method's defaults from [method] and [training] of the saved config of a run.

    A saved config states every value, whether it was chosen or not, and another method may have other
    defaults. Values of a config with a preset stay, because each is the preset's or was chosen instead of it.
    """
    method, training = raw.get("method", {}), raw.get("training")
    if not isinstance(training, dict) or not {field.name for field in fields(Training)} <= {*training}:
        return  # not a saved config
    if "preset" in raw or {("method",), ("training",)} & {*overridden}:
        return
    stated = {field.name: getattr(Training, field.name, None) for field in fields(Training)}
    stated |= adapted_defaults(raw)
    raw["method"] = {
        key: value
        for key, value in method.items()
        if ("method", key) in overridden or value != getattr(former, key, None)
    }
    raw["training"] = {
        key: value
        for key, value in training.items()
        if ("training", key) in overridden or value != stated.get(key)
    }
