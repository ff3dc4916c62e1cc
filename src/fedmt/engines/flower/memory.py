"""What a center keeps between rounds (M-hat, control variates, local layers), on its own disk.

    <state>/<run>/round-000003.safetensors     after the center's part of round 3
    <state>/<run>/received.safetensors         the last model it was sent outside of a round
    <state>/<run>/frozen.safetensors           a frozen backbone, sent once
    <state>/<run>/features.safetensors         the features of the center's samples, computed once
    <state>/<run>/data.json                    a digest of the data that it began with

Flower's own client state is kept in memory, for one of Flower's runs. The coordinator says after which round
it accepted the center's last answer, and the center continues from there. Both sides therefore agree on the
past, even if an answer came too late or a coordinator was killed and repeated a round.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors
from safetensors import SafetensorError
from torch import Tensor

from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.tensor_files import to_bytes
from fedmt.runs.files import write_atomically, writing

Tensors = dict[str, Tensor]


class Unable(FedmtError):
    """Why a center cannot do its part, in words that may leave it. They contain no file, label or path."""


class Lost(Unable):
    """What the center kept is missing or damaged, so it has to start over."""


class Memory:
    """The memory of one center in one run."""

    def __init__(self, state: Path, run: str, center: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise Unable(f"'{run}' is not the name of a run.")  # it becomes a folder's name
        self.folder = state / run
        self.center = center

    def load(self, round: int | None) -> Tensors:
        """What was kept after a round. Nothing before the first round."""
        if round is None:
            return {}
        path = self._path(round)
        if not path.exists():
            raise Lost(f"its memory of round {round} is missing from its state folder")
        return self._read(path, str(round))

    def save(self, round: int, kept: Mapping[str, Tensor], keep_from: int) -> None:
        """Remembers a round. Forgets everything that no coordinator can return to: all before the last round
        that is not after `keep_from`."""
        self._write(self._path(round), kept, str(round))
        rounds = sorted(int(p.stem.removeprefix("round-")) for p in self.folder.glob("round-*.safetensors"))
        reachable = max((r for r in rounds if r <= keep_from), default=-1)
        for old in rounds:
            if old < reachable:
                self._path(old).unlink(missing_ok=True)

    def receive(self, weights: Mapping[str, Tensor], label: str) -> None:
        """Stores a model under a label. A later message completes it with what has changed (`received`)."""
        self._write(self.folder / "received.safetensors", weights, label)

    def received(self, label: str) -> Tensors:
        path = self.folder / "received.safetensors"
        if not path.exists():
            raise Lost("the model it should have received before is missing from its state folder")
        return self._read(path, label)

    def keep_frozen(self, weights: Mapping[str, Tensor], digest: str) -> None:
        """Stores the weights of the frozen backbone."""
        self._write(self.folder / "frozen.safetensors", weights, digest)

    def frozen(self, digest: str) -> Tensors:
        path = self.folder / "frozen.safetensors"
        if not path.exists():
            raise Lost("the frozen backbone it was sent is missing from its state folder")
        weights = self._read(path, digest)
        if digest_of(weights) != digest:
            raise Lost("the frozen backbone in its state folder is damaged")
        return weights

    def keep_features(self, features: Tensor, label: str) -> None:
        """Stores the features of the center's samples. label: identifies the samples and the network."""
        self._write(self.folder / "features.safetensors", {"features": features}, label)

    def features(self, label: str) -> Tensor | None:
        """None if they have to be computed, because it is the first time or the samples have changed."""
        try:
            return self._read(self.folder / "features.safetensors", label)["features"]
        except (Lost, OSError):
            return None

    def keep_data(self, digests: Mapping[str, str]) -> bool:
        """Whether the data are those that the center began this run with. The first time, their digest is
        stored."""
        path = self.folder / "data.json"
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            with writing(path):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, (json.dumps(dict(digests)) + "\n").encode())
            return True
        if not isinstance(before, dict) or before.keys() != digests.keys():
            raise Unable(
                "its state folder is another center's too; give each center a state folder of its own"
            )
        return bool(before == dict(digests))

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def _write(self, path: Path, tensors: Mapping[str, Tensor], label: str) -> None:
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        metadata = {"run": self.folder.name, "center": self.center, "label": label}
        write_atomically(path, to_bytes(tensors, metadata))

    def _read(self, path: Path, label: str) -> Tensors:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError, ValueError):
            raise Lost(f"{path.name} in its state folder is damaged") from None
        expected = {"run": self.folder.name, "center": self.center, "label": label}
        if metadata != expected:
            raise Lost(f"{path.name} in its state folder belongs to another center, run or round")
        return tensors
