"""The config: a TOML file that describes a whole run.

schema.py      what it may contain: the tables and their keys
parsing.py     reading and checking it; errors.py: where a mistake is, and what to say about it
traveling.py   which parts travel to the centers of a run between machines
presets.py     named settings of whole tables
variants.py    the same config with another method
building.py    from a config to the method, the strategy, the federation and the network
describing.py  the reverse: a federation of arrays in memory as the tables of a config
freezing.py    the federation through a frozen network
dumping.py     the resolved config, as a run folder keeps it
summing.py     secure aggregation: its terms, and what it excludes
identity.py    which key each center of a run between machines must have
"""

from __future__ import annotations

from fedmt.config.building import (
    build_attack,
    build_federation,
    build_guard,
    build_method,
    build_model,
    build_network,
    build_strategy,
    build_transforms,
    starting_model,
    with_held_out,
)
from fedmt.config.describing import array_files, data_tables
from fedmt.config.dumping import dump_config, resolved
from fedmt.config.freezing import freeze
from fedmt.config.identity import center_keys
from fedmt.config.parsing import load_config, override, parse_config, read_toml
from fedmt.config.schema import Config, DeploymentSpec, ModelSpec, config_class
from fedmt.config.summing import build_summing

__all__ = [
    "Config",
    "DeploymentSpec",
    "ModelSpec",
    "array_files",
    "build_attack",
    "build_federation",
    "build_guard",
    "build_method",
    "build_model",
    "build_network",
    "build_strategy",
    "build_summing",
    "build_transforms",
    "center_keys",
    "config_class",
    "data_tables",
    "dump_config",
    "freeze",
    "load_config",
    "override",
    "parse_config",
    "read_toml",
    "resolved",
    "starting_model",
    "with_held_out",
]
