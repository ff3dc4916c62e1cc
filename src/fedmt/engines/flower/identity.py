"""Identifies a node by its key, and verifies that an answer is really its own.

A center's name is determined by the key with which Flower authenticated its node, never by what the node
says. Flower 1.41 does not compare the sender of a reply with the node that pushed it, so every answer is
signed with the same key over the run, the round, the message that it answers and what it contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedmt.core.errors import FedmtError
from fedmt.engines.flower import wire
from fedmt.engines.flower.keys import Key, PublicKey, fingerprint, public_key, sign, statement, verify


@dataclass(frozen=True)
class Identity:
    """A node and what is known of it before it says anything.

    key: None without authentication. name: the center that this key belongs to; None if names are not bound
    to keys. refused: why this node is not asked at all.
    """

    node: int
    key: PublicKey | None = None
    name: str | None = None
    refused: str = ""

    @property
    def fingerprint(self) -> str | None:
        return None if self.key is None else fingerprint(self.key)


def identified(nodes: Iterable[NodeInfo], keys: Mapping[str, str]) -> dict[int, Identity]:
    """The identities of nodes. keys: the fingerprint of each center; empty if names are not bound to keys."""
    owners = {key: name for name, key in keys.items()}
    found: dict[int, Identity] = {}
    first: dict[str, int] = {}
    for info in sorted(nodes, key=lambda info: int(info.node_id)):
        node, key = int(info.node_id), public_key(info.public_key)
        if not keys:
            found[node] = Identity(node, key)
            continue
        if key is None:
            found[node] = Identity(node, refused="it has no key")
            continue
        own = fingerprint(key)
        name = owners.get(own)
        refused = ""
        if name is None:
            refused = f"its key {own} is not in the federation's config"
        elif first.setdefault(own, node) != node:
            refused = f"node {first[own]} has the same key, that of center '{name}'"
        found[node] = Identity(node, key, name, refused)
    return found


def signed(content: RecordDict, key: Key | None, facts: Mapping[str, Any], message: str) -> RecordDict:
    """The answer with its signature, if the center has a key. message: the id of the message that it
    answers."""
    if key is not None:
        said = _statement(content, facts, message)
        content[wire.SIGNATURE] = ConfigRecord({"ecdsa-sha256": sign(key, said)})
    return content


def unsigned(content: RecordDict, facts: Mapping[str, Any], message: str, key: PublicKey) -> str:
    """What is wrong with an answer's signature. Empty if it was made with this key."""
    found = content.get(wire.SIGNATURE)
    value = found.get("ecdsa-sha256") if isinstance(found, ConfigRecord) else None
    if not isinstance(value, bytes):
        return "its answer is not signed; name its private key in its center.toml (key = …)"
    try:
        said = _statement(content, facts, message)
    except FedmtError as error:
        return str(error)
    if not verify(key, said, value):
        return "its answer is not signed with its own key, or it was changed in transit"
    return ""


def _statement(content: RecordDict, facts: Mapping[str, Any], message: str) -> bytes:
    digests = wire.digests_of(wire.parts_of(content))
    return statement(str(facts.get("run")), _round(facts), message, digests)


def _round(facts: Mapping[str, Any]) -> int:
    number = facts.get("round")
    return number if isinstance(number, int) else -1
