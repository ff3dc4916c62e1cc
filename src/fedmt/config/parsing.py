"""Reads a config, a TOML file. All of it is checked before anything is loaded or written.

Every error names the file, the key and, if it can be found, the line. For an unknown key, the nearest known
one is suggested.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedmt.config.adapting import adapted
from fedmt.config.building import GUARD, build_attack, build_guard, build_method, build_named, build_strategy
from fedmt.config.errors import Origin, explain
from fedmt.config.presets import with_preset
from fedmt.config.schema import NAMED, Config, config_class, find_input, sees_vectors
from fedmt.config.summing import check_sums_suffice
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.registry import option_names, own_tables
from fedmt.data.sources import find_source
from fedmt.data.specs import SourceSpec
from fedmt.methods import Method
from fedmt.metrics import enter


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads a TOML config. `overrides` are `key=value` pairs, as given to `--set`."""
    path = Path(path)
    raw, text = read_config(path)
    keys = tuple(override(raw, item) for item in overrides or [])
    return parse_config(raw, Origin(path, text, keys))


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The TOML file of one federation as dictionaries and as text, not yet checked."""
    raw, text = read_toml(path)
    if "rows" in raw and "columns" in raw:
        raise FedmtError(f"{path} is an experiment, not a federation: `fedmt sweep {path}` runs it.")
    return raw, text


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as dictionaries and as text. A file that cannot be read raises a FedmtError."""
    try:
        text = path.read_text(
            encoding="utf-8-sig"
        )  # Windows editors may add a byte order mark at the beginning
    except FileNotFoundError:
        others = [str(p) for p in sorted(path.parent.glob("*.toml")) if p.name != "pyproject.toml"]
        hint = nearest(str(path), others) or (f" That folder contains {listed(others)}." if others else "")
        first = "" if hint else " `fedmt init` writes a first one from your data."
        raise FedmtError(f"{path}: this file does not exist.{hint}{first}") from None
    except IsADirectoryError:
        inside = [str(p) for p in sorted(path.glob("*.toml"))]
        hint = f"such as {inside[0]}" if inside else "which `fedmt init` writes from your data"
        raise FedmtError(f"{path} is a folder. Name the TOML file, {hint}.") from None
    except OSError as error:
        raise FedmtError(f"{path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise FedmtError(f"{path}: this is not a TOML file, because it is not UTF-8 text.") from None
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        data = path.suffix.lower() in (".csv", ".parquet", ".txt", ".json")
        hint = " This is not a config. `fedmt init` writes one from your data." if data else ""
        raise FedmtError(f"{path}: not valid TOML: {error}.{hint}") from None


def parse_config(raw: dict[str, Any], origin: Origin | None = None) -> Config:
    """Checks a config given as nested dictionaries."""
    origin = origin or Origin()
    raw = adapted(with_preset(raw, origin))
    for table, (default, _) in NAMED.items():
        if isinstance(raw.get(table, {}), dict):
            raw = {**raw, table: {"name": default, **raw.get(table, {})}}
    prefix: tuple[str, ...] = ()
    schema: type[Config] = Config
    try:
        folder = origin.path.parent if origin.path is not None else None
        schema = config_class(raw)
        config = schema.model_validate(raw, context={"folder": folder})
        if origin.path is not None:
            config._where = str(origin.path)
        for table in NAMED:
            _check_options(table, config, origin)
            prefix = (table,)
            build_named(config, table)
        method, strategy = build_method(config), build_strategy(config)
        method.check_strategy(strategy)
        method.check_privacy(strategy)
        prefix = ("aggregation", GUARD)
        build_guard(config)
        check_sums_suffice(config)
        prefix = ("attack",)
        build_attack(config)
        enter(config.metrics, "metrics")
        _check_frozen(config)
        for key, spec in _sources(config):
            find_source(spec, type(config.options), f"{key}.source")
    except ValidationError as error:
        said = explain(error, schema, prefix, origin)
        model = raw.get("model")
        if "'augmentation." in said and isinstance(model, dict) and model.get("freeze"):
            said += " With model.freeze, the views are views of vectors. Remove the keys of other views."
        raise FedmtError(said) from None
    except FedmtError as error:
        # Raised by an options class, which knows its key ("training.rounds: …") but not the file.
        key, _, message = str(error).partition(": ")
        if not message or not re.fullmatch(r"[\w.]+", key):
            raise
        location = [int(part) if part.isdigit() else part for part in key.split(".")]
        raise FedmtError(origin.blame(location, message)) from None
    _check_together(config, origin)
    return config


def _check_together(config: Config, origin: Origin) -> None:
    """Which tables a config must have, and which exclude each other."""
    if config.benchmark is None:
        needed = [k for k in ("wanted", "reference", "centers") if not getattr(config, k)]
        if needed:
            raise FedmtError(
                f"{origin.place()}missing {listed(needed)}: a config has either [benchmark], or wanted, "
                "[reference] and [[centers]]."
            )
        if config.attack is not None:
            raise FedmtError(
                f"{origin.place('attack')}attack: this table simulates bad centers of a [benchmark]. Remove "
                "it."
            )
    elif config.wanted or config.reference or config.centers or config.tests:
        raise FedmtError(
            f"{origin.place()}both [benchmark] and a federation with centers are given. Keep only one."
        )
    elif config.privacy is not None and config.benchmark.augment_to:
        raise FedmtError(
            f"{origin.place('privacy')}privacy: with benchmark.augment_to, a record would be in its center "
            "several times, and each copy would count as a separate record. Keep only one of the two."
        )
    elif config.calibration is not None and config.benchmark.augment_to:
        raise FedmtError(
            f"{origin.place('calibration')}calibration: with benchmark.augment_to, augmented copies of "
            "held-out images would be used for training. Keep only one of the two."
        )


def _check_frozen(config: Config) -> None:
    """Freezing is for networks that compute features, and each sample has one feature vector."""
    if config.model.freeze is None:
        return
    kind = find_input(config.input)
    if sees_vectors(kind):
        raise FedmtError(
            f"model.freeze: the samples of this federation are {kind.name}, and '{config.model.backbone}' "
            "trains on them directly. Leave it out. It is for networks that compute features of images."
        )
    if config.benchmark is not None and config.benchmark.augment_to:
        raise FedmtError(
            "benchmark.augment_to: with model.freeze, the features of each sample are computed once, so no "
            "copies are augmented. Keep only one of the two."
        )


def _sources(config: Config) -> Iterator[tuple[str, SourceSpec]]:
    """Everything in a config that names a source, with its key."""
    if config.benchmark is not None:
        yield "benchmark.data", config.benchmark.data
        if config.benchmark.test is not None:
            yield "benchmark.test", config.benchmark.test
    if config.reference is not None:
        yield "reference", config.reference
    for name, specs in (("centers", config.centers), ("tests", config.tests)):
        for number, spec in enumerate(specs):
            yield f"{name}.{number}", spec


def _check_options(table: str, config: Config, origin: Origin) -> None:
    """Checks that the name can be found, and that every key is one of its options."""
    options, registry = getattr(config, table), NAMED[table][1]
    entry = registry.find(options.get("name"), f"{table}.name")
    known, elsewhere = option_names(entry), {*own_tables(entry), *own_tables(Method)}
    for key in options:
        if key in elsewhere:
            raise FedmtError(
                f"{origin.place(table, key)}{table}.{key}: this belongs in its own table, [{key}]."
            )
        if key not in ("name", *known) and (table, key) != ("aggregation", GUARD):
            hint = nearest(key, known) or (
                f" {registry.word.capitalize()} '{options['name']}' has no options."
                if not known
                else f" Known: {listed(known, 20)}."
            )
            raise FedmtError(f"{origin.place(table, key)}unknown key '{table}.{key}'.{hint}")


def override(raw: dict[str, Any], item: str) -> tuple[str, ...]:
    """Applies one `a.b=value` and returns its key. A value that is not valid TOML is taken as plain text."""
    key, equals, value = item.partition("=")
    if not equals or not key.strip():
        raise FedmtError(f"--set {item}: expected key=value, as in --set training.rounds=20.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    path = tuple(key.strip().split("."))
    for table in path[:-1]:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise FedmtError(f"--set {item}: '{table}' is not a table.")
    raw[path[-1]] = parsed
    return path
