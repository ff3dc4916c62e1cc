"""Converts keyword arguments to the config that `fedmt run` would read, so that both are checked and run in
the same way.

A name without a table is looked up in the tables of the config that hold options: `rounds=20` is
`training.rounds`. A whole table is a dictionary: `training={"rounds": 20}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmt.backbones.given import given_name, needs_head
from fedmt.config import Config, ModelSpec, config_class, data_tables, parse_config
from fedmt.config.errors import Origin
from fedmt.config.presets import with_preset
from fedmt.config.schema import NAMED
from fedmt.core.errors import FedmtError, nearest
from fedmt.core.registry import option_names
from fedmt.data.center import Federation
from fedmt.methods import Training

DATA = ("input", "wanted", "spaces", "reference", "centers", "tests", "correspondences", "benchmark")
"""Keys of a config that the federation already determines."""


def config_of(
    federation: Federation,
    model: str | nn.Module | Mapping[str, Any] | None,
    method: str | type | Mapping[str, Any],
    strategy: str | type | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    kept: Path | None = None,
) -> tuple[Config, nn.Module | None]:
    """The config, and the user's own module if `model` is one. kept: as in `data_tables`."""
    raw = data_tables(federation, kept)
    own_table = config_class(raw).model_fields.keys() - Config.model_fields.keys()
    network, tables = _model(model, federation, options)
    tables = {
        "model": tables,
        "method": _named(method, "method"),
        "aggregation": _named(strategy, "aggregation"),
    }
    problems = []
    flat = {}
    for name, value in options.items():
        if name in DATA or name in own_table:
            problems.append(f"{name}: the federation already determines it. Leave it out.")
        elif name == "deployment":
            problems.append(
                "deployment: this is for runs between machines, which `fedmt` starts. Leave it out."
            )
        elif name in Config.model_fields and isinstance(value, Mapping):
            tables[name] = {**tables.get(name, {}), **value}
        elif name in Config.model_fields:
            raw[name] = value
        else:
            flat[name] = value
    places = _places(federation, raw.get("preset"), tables)
    for name, value in flat.items():
        found = [table for table, keys in places.items() if name in keys]
        if len(found) == 1 and name not in tables.get(found[0], {}):
            tables.setdefault(found[0], {})[name] = value
        elif len(found) == 1:
            problems.append(f"{name}: it is in {found[0]}={{...}} as well; give it once.")
        elif found:
            tables_said = " or ".join(f'{table}={{"{name}": ...}}' for table in found)
            problems.append(f"{name}: several tables have it. Choose one: {tables_said}.")
        else:
            known = [*(k for keys in places.values() for k in keys), *Config.model_fields]
            hint = nearest(name, (k for k in known if k not in DATA))
            chosen = f"method '{tables['method'].get('name')}'"
            problems.append(
                f"{name}: there is no such option with {chosen}.{hint} docs/reference/config.md lists them "
                "all."
            )
    if problems:
        raise FedmtError("\n".join(problems))
    if isinstance(
        tables["model"].get("weights"), str | Path
    ):  # relative to the current folder, not to the run folder
        tables["model"]["weights"] = str(Path(tables["model"]["weights"]).expanduser().resolve())
    raw |= {name: table for name, table in tables.items() if table}
    return parse_config(_plain(raw)), network


def _plain(value: Any) -> Any:
    """A number of NumPy or torch, or a device, as a config can hold it, also inside tables and lists."""
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, np.generic | Tensor) and value.ndim == 0:
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _model(
    model: str | nn.Module | Mapping[str, Any] | None, federation: Federation, options: Mapping[str, Any]
) -> tuple[nn.Module | None, dict[str, Any]]:
    """The module, if there is one, and the table [model]."""
    given = {} if model is None else {"backbone": model}
    table: dict[str, Any] = dict(model) if isinstance(model, Mapping) else dict(given)
    network = table.get("backbone")
    if not isinstance(network, nn.Module):
        if network is not None and not isinstance(network, str):
            raise FedmtError(
                f"model: an object of type {type(network).__name__}; expected the name of a backbone, an "
                "nn.Module, or a dictionary as in [model]."
            )
        return None, table
    for key in ("weights", "max_pool"):
        if key in table:
            raise FedmtError(
                f"model.{key}: this is for fedmt's own networks. A module brings its own weights."
            )
    head = options.get("head", table.get("head"))
    if not isinstance(head, bool | None):
        raise FedmtError(f"model.head: {head!r} given, expected True or False.")
    table["backbone"] = given_name(network)
    needed = needs_head(network, len(federation.wanted), federation.input, head)
    if "head" not in options:
        table["head"] = needed
    return network, table


def _named(value: str | type | Mapping[str, Any] | None, table: str) -> dict[str, Any]:
    """A table that chooses by name. A user's own class is named by its location."""
    given = dict(value) if isinstance(value, Mapping) else {} if value is None else {"name": value}
    name = given.get("name")
    if isinstance(name, type):
        given["name"] = NAMED[table][1].name_of(name)
    return given


def _places(
    federation: Federation, preset: object, tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """The options by name, in each table that has some."""
    chosen = with_preset({"preset": preset, **tables}, Origin()) if preset is not None else tables
    found = {}
    for table, (default, registry) in NAMED.items():
        name = chosen.get(table, {}).get("name", default)
        found[table] = option_names(registry.find(name, f"{table}.name"))
    found["training"] = [f.name for f in dataclasses.fields(Training)]
    found["augmentation"] = [f.name for f in dataclasses.fields(type(federation.input).views)]  # type: ignore[arg-type]
    found["model"] = [name for name in ModelSpec.model_fields if name != "backbone"]
    return found
