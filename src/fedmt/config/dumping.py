"""The resolved config, as a run folder keeps it."""

from __future__ import annotations

from typing import Any

import tomli_w

from fedmt.aggregation import GUARDS, Clip
from fedmt.attacks import ATTACKS
from fedmt.config.building import GUARD, build_attack, build_guard, build_named
from fedmt.config.schema import NAMED, Config, find_input
from fedmt.core.registry import option_names
from fedmt.inputs import DEFAULT_INPUT


def dump_config(config: Config) -> str:
    """The resolved config as TOML. Every default is spelled out, so that the run can be repeated exactly."""
    plain = resolved(config)
    if plain["input"] == DEFAULT_INPUT.name:
        del plain["input"]  # so that runs made before there were other values can be resumed
    if not plain["metrics"]:
        del plain["metrics"]  # likewise
    if not plain["compile"]:
        del plain["compile"]  # likewise
    if not plain["augmentation"].get("cutmix", True):
        del plain["augmentation"]["cutmix"]  # likewise
    del plain["keep_checkpoints"]  # how much is kept may change when a run is resumed
    plain.pop(
        "prefetch", None
    )  # where samples are stored may change too, because the weights do not depend on it
    plain.pop("tracking", None)  # the trackers of a run may change when it is resumed
    for center in plain.get("centers", ()):
        center.pop("key", None)  # which key may speak for a center may change too
    # How long to wait, and for how many centers, may change when a run is resumed. What travels may not.
    deployment = plain.pop("deployment", {})
    fixed = ["wire"] if deployment.get("wire", "float32") != "float32" else []
    if deployment.get("secure_aggregation"):
        fixed += ["secure_aggregation", "max_samples"]
    if fixed:
        plain["deployment"] = {key: deployment[key] for key in fixed}
    return tomli_w.dumps(plain)


def resolved(config: Config) -> dict[str, Any]:
    """The config as plain dictionaries, with the default of every option that has one."""
    plain: dict[str, Any] = _without_none(config.model_dump(mode="json"))
    own = find_input(config.input).name
    keys = [key for key in plain if key != own]
    keys.insert(keys.index("model") + 1, own)  # the input's table goes next to the network's, not at the end
    plain = {key: plain[key] for key in keys}
    for table in NAMED:
        built = build_named(config, table)
        options = {key: getattr(built, key) for key in option_names(type(built))}
        plain[table] = {"name": plain[table]["name"], **options}
    attack = build_attack(config)
    if attack is not None:
        options = {key: getattr(attack, key) for key in option_names(type(attack))}
        plain["attack"] = {"name": ATTACKS.name_of(type(attack)), **options}
    guard = build_guard(config)
    if guard != Clip():  # so that a run made before there were guards can be resumed
        options = {key: getattr(guard, key) for key in option_names(type(guard))}
        plain["aggregation"][GUARD] = {"name": GUARDS.name_of(type(guard)), **options}
    return plain


def _without_none(value: Any) -> Any:
    """TOML has no null, so an option that is not set is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
