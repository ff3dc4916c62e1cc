"""A message to a center, and the center that should answer it: its settings, key, memory and audit log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

import fedmt
from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.escaping import escaped
from fedmt.engines.flower import wire
from fedmt.engines.flower.keys import Key
from fedmt.engines.flower.memory import Memory, Unable
from fedmt.engines.flower.plan import Plan
from fedmt.engines.flower.settings import CenterFile, CenterSettings
from fedmt.engines.flower.trail import Trail


@dataclass(frozen=True)
class Task:
    """A message from the coordinator, and the center that should answer it."""

    message: Message
    facts: Mapping[str, Any]
    settings: CenterSettings
    key: Key | None

    @property
    def plan(self) -> Plan:
        raw = self.facts["plan"]
        # First, because another version may have other names and other keys.
        if (theirs := raw["version"]) != fedmt.__version__:
            raise Unable(f"it runs fedmt {fedmt.__version__}, but the coordinator runs {escaped(theirs, 80)}")
        self.settings.check_names(raw)
        return Plan.from_json(raw)

    @property
    def memory(self) -> Memory:
        file = self.settings.file
        return Memory(file.state, str(self.facts["run"]), file.name)

    @property
    def trail(self) -> Trail:
        return Trail(self.settings.file.state)

    def tensors(self, name: str) -> wire.Weights:
        return wire.tensors_of(self.message.content, name)


def open_task(message: Message, context: Context) -> Task:
    settings = find_settings(context)
    with suppress(OSError):  # whoever writes into it says what is wrong
        # Decoded images, M-hat and the ledger are for the center's own user only, as the data may be.
        settings.file.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Task(message, wire.facts_of(message.content), settings, settings.private_key())


def find_settings(context: Context) -> CenterSettings:
    """The center's file. In Flower's simulation, the center of the federation with the node's number."""
    node = context.node_config
    if "center" in node:
        return CenterSettings.read(Path(str(node["center"])).expanduser())
    if "partition-id" not in node:
        raise FedmtError("""Start the SuperNode with --node-config 'center="/path/to/center.toml"'.""")
    path = Path(str(context.run_config["federation"]))
    config = load_config(path)
    federation, _ = build_federation(config)
    number = int(node["partition-id"])
    if number >= len(federation.centers):
        raise FedmtError(f"{path} has {len(federation.centers)} centers: there is none for node {number}.")
    name = federation.centers[number].name
    state = Path(str(context.run_config["out"])).resolve().parent / "centers" / name
    # A simulation belongs to the user, so there is nothing to hide.
    file = CenterFile(
        name=name,
        state=state,
        federation=path,
        share_correspondence=True,
        share_metrics=True,
        share_prior=True,
        threshold=None,
        privacy=config.privacy,
    )
    return CenterSettings(file, str(path), simulated=True)
