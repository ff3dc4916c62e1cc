"""A config with another method than it names: what `fedmt run --method` and `--baseline` train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmt.config.errors import Origin
from fedmt.config.parsing import override, parse_config, read_config
from fedmt.config.schema import NAMED, Config
from fedmt.core.registry import option_names
from fedmt.methods import METHODS


def load_variant(
    path: str | Path,
    overrides: list[str] | None = None,
    method: str | None = None,
    baseline: str | None = None,
) -> tuple[Config, list[str]]:
    """A TOML config with another method, and notes on what of the file was left out for it.

    method: chosen before `overrides`, which may then set its options. baseline: chosen after them, so that
    options which `overrides` give the method are not the baseline's.
    """
    path = Path(path)
    raw, text = read_config(path)
    notes = _choose(raw, method, f"--method {method}") if method is not None else []
    keys = tuple(override(raw, item) for item in overrides or [])
    if baseline is not None:
        notes += _choose(raw, baseline, f"--baseline {baseline}")
    return parse_config(raw, Origin(path, text, keys)), notes


def _choose(raw: dict[str, Any], name: str, asked: str) -> list[str]:
    """Changes the config's method; options that it does not have, and tables it refuses, are left out."""
    chosen = METHODS.find(name, asked)
    own = raw.get("method", {})
    if not isinstance(own, dict):
        return []  # an error that parsing will name
    before = own.get("name", NAMED["method"][0])
    known = {"name", *option_names(chosen)}
    left = [f"method.{key}" for key in own if key not in known] if name != before else []
    raw["method"] = {key: value for key, value in own.items() if f"method.{key}" not in left} | {"name": name}
    if name != before and "aggregation" in raw and not chosen.schedule.centers_train:
        del raw["aggregation"]
        left.append("[aggregation]")
    if name != before and "preset" in raw and raw["preset"] not in chosen.presets:
        left.append(f"preset = {raw.pop('preset')!r}")
    if not left:
        return []
    return [f"{asked}: left out {', '.join(left)}, which the config gives for '{before}'."]
