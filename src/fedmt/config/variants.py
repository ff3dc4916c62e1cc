"""A config with a different method than the one it names, as trained by `fedmt run --method` and
`--baseline`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedmt.config.adapting import ADAPTING, adapted_defaults
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
    """Changes the config's method. Options that the new method does not have, and tables it rejects, are left
    out.

    The saved config of a run states every value, whether it was chosen or not. In it, values that were the
    default for the former method are left out too, because the new one may have another. This does not apply
    to keys that were `overridden`, because these were chosen, nor with a preset, because each value is then
    the preset's or was chosen instead of it.
    """
    chosen = METHODS.find(name, asked)
    own = raw.get("method", {})
    if not isinstance(own, dict):
        return []  # parsing will report this error
    before = own.get("name", NAMED["method"][0])
    known = {"name", *option_names(chosen)}
    left = [f"method.{key}" for key in own if key not in known] if name != before else []
    training = raw.get("training")
    if name != before and isinstance(training, dict) and {*ADAPTING} <= {*training} and "preset" not in raw:
        default = {k: getattr(Training, k) for k in ADAPTING} | adapted_defaults(raw)
        stated = {k for k in ADAPTING if training[k] == default[k] and ("training", k) not in overridden}
        raw["training"] = {k: v for k, v in training.items() if k not in stated}
    raw["method"] = {key: value for key, value in own.items() if f"method.{key}" not in left} | {"name": name}
    if name != before and "aggregation" in raw and not chosen.schedule.centers_train:
        del raw["aggregation"]
        left.append("[aggregation]")
    if name != before and "preset" in raw and raw["preset"] not in chosen.presets:
        left.append(f"preset = {raw.pop('preset')!r}")
    if not left:
        return []
    return [f"{asked}: left out {', '.join(left)}, which the config sets for '{before}'."]
