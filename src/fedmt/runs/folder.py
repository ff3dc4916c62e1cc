"""The run folder: what a run leaves behind, and what it resumes from after a kill.

    config.toml        the resolved config
    model.json         what is needed to use the weights: label spaces, the input, centers
    metrics.jsonl      one line per round
    checkpoints/       round-000012.safetensors, the last two, or as many as `keep_checkpoints` sets
    frozen.safetensors the weights of a frozen backbone, once; the checkpoints have only the head
    data.json          digests of the data it began with
    summary.json       written when the run is finished
    evaluation.npz     written with it: predictions on the test data, for reports (`evaluation`)

Files are replaced atomically. A round's metrics are written before its checkpoint, so that a kill
between the two leaves a line that resuming writes again, and never a missing one.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError, closest, cut, listed
from fedmt.engines.state import State
from fedmt.metrics import enter
from fedmt.runs.checkpoints import dump_state, load_checkpoint
from fedmt.runs.files import flush, read_utf8, write_atomically, writing
from fedmt.runs.records import NotARecord, modern, read_record

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

KEEP = 2
"""Smallest number of checkpoints to keep: the last, and the one before in case the last is damaged."""


class RunFolder:
    """One run on disk. Open it with `create` or `resume`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self.model_file = path / "model.json"
        self.data_file = path / "data.json"
        self.evaluation_file = path / "evaluation.npz"
        self.checkpoints = path / "checkpoints"
        self.frozen_file = path / "frozen.safetensors"

    # -- opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, config: str) -> RunFolder:
        """A new run in a new or empty folder."""
        folder = cls(Path(path))
        folder.refuse_if_taken()
        folder._begin(config)
        return folder

    def refuse_if_taken(self) -> None:
        """Raises an error if anything exists at the folder's path."""
        if self.config_file.exists():
            raise FedmtError(
                f"{self.path} already holds a run. Continue it with --resume, or choose another folder with "
                "--out."
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            what = "is not empty" if self.path.is_dir() else "is a file"
            raise FedmtError(f"{self.path} {what}. Choose another folder with --out.")

    @classmethod
    def resume(cls, path: str | Path, config: str) -> RunFolder:
        """The run in `path`, if it has the same config. If there is no folder, or if the run was killed
        before its config was written, it starts from the beginning."""
        folder = cls(Path(path))
        if folder.path.exists() and not folder.path.is_dir():
            raise FedmtError(f"{folder.path} is a file. Choose another folder with --out.")
        if not folder.config_file.exists():
            strangers = [p.name for p in folder.path.iterdir()] if folder.path.is_dir() else []
            if [name for name in strangers if name != "lock" and not name.endswith(".tmp")]:
                raise FedmtError(
                    f"{folder.path} holds files but no run (no config.toml). Choose another --out."
                )
            folder._begin(config)
            return folder
        with writing(folder.config_file):
            before = read_utf8(folder.config_file)
        if before != config:
            changed = _differences(before, config, folder.config_file)
            if not all(key.split(".")[:2] == ["aggregation", "guard"] for key in changed):
                raise FedmtError(
                    f"{folder.path} holds another run: its config differs in {_shown(changed)}. "
                    "Give the config it was started with, or another --out."
                )
            # After a bad round, a run may continue from before it with a guard that holds.
            write_atomically(folder.config_file, config.encode())
        return folder

    def _begin(self, config: str) -> None:
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config_file, config.encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within this context, no other process may run here, because two would overwrite each other.

        The system releases the lock when the process ends, however it ends.
        """
        if fcntl is None:  # not a POSIX system: there is no such lock
            yield
            return
        with writing(self.path / "lock"):
            file = (self.path / "lock").open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedmtError(f"{self.path}: another process is running in this folder.") from None
            yield

    def keep_data(self, contents: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Rejects resuming with data other than those the run began with, which would mix both in one
        model."""
        digests = {name: digest_of(tensors) for name, tensors in contents.items()}
        try:
            before = json.loads(self.data_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = None  # not there, or cut short by a kill
        if before is not None and not isinstance(before, dict):
            raise FedmtError(
                f"{self.data_file}: this is not a table of digests, so it is unknown whether the data have "
                "changed since the run began. Restore the file, or delete it to continue without this "
                "check."
            )
        if before is None:
            write_atomically(self.data_file, (json.dumps(digests, indent=1) + "\n").encode())
            return
        # Earlier versions recorded a blank image as the data of a center on another machine.
        elsewhere = {name for name in digests if name.startswith("elsewhere/") and name not in before}
        elsewhere |= {name.removeprefix("elsewhere/") for name in elsewhere}
        names = [name for name in {**before, **digests} if name not in elsewhere]
        changed = [name for name in names if before.get(name) != digests.get(name)]
        if changed:
            raise FedmtError(
                f"{self.path}: this run began with other data (samples, labels or a correspondence) of "
                f"{listed(changed, 5)}. Restore them to continue, or start a new run in another --out."
            )

    # -- metrics and summary ----------------------------------------------------------------------

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, allow_nan=False, default=str) + "\n"
        with writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(line)
            flush(file)

    def enter_metrics(self) -> str:
        """Registers the user's own metrics that the config names. Returns what is wrong if one is not
        found."""
        try:
            settings = tomllib.loads(self.config_file.read_text(encoding="utf-8"))
            enter(settings.get("metrics", ()), f"{self.config_file}: metrics")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return ""  # whoever needs the config says what is wrong with it
        except FedmtError as error:
            return str(error)
        return ""

    def metrics(self) -> list[dict[str, Any]]:
        """The recorded rounds. A last line that was cut short by a kill is skipped."""
        if not self.metrics_file.exists():
            return []
        records = []
        # As bytes: a kill may cut a line within a character.
        written = self.metrics_file.read_bytes()
        lines = written.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                records.append(read_record(line.decode()))
            except (ValueError, RecursionError) as error:
                broken = isinstance(error, UnicodeDecodeError) and written.endswith(b"\n")
                if number < len(lines) or broken:
                    what = "not text in UTF-8" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
                    what = str(error) if isinstance(error, NotARecord) else what
                    raise FedmtError(f"{self.metrics_file}, line {number}: {what}.") from None
        return records

    def rewind(self, round: int) -> None:
        """Deletes the metrics of rounds after `round`, which will be computed again."""
        kept = [r for r in self.metrics() if r["round"] <= round]
        if self.metrics_file.exists():
            text = "".join(json.dumps(r, allow_nan=False) + "\n" for r in kept)
            write_atomically(self.metrics_file, text.encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.summary_file, (json.dumps(summary, indent=2) + "\n").encode())

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run. None if there is none, or if it cannot be read."""
        try:
            found = json.loads(self.summary_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return modern(found) if isinstance(found, dict) else None

    def write_model(self, description: Mapping[str, Any]) -> None:
        write_atomically(self.model_file, (json.dumps(description, indent=1) + "\n").encode())

    def keep_frozen(self, weights: Mapping[str, Tensor]) -> None:
        """Writes the weights of the frozen backbone. Their digest is in `model.json`."""
        plain = {k: v.cpu().contiguous() for k, v in sorted(weights.items())}
        write_atomically(self.frozen_file, safetensors.torch.save(plain))

    def frozen(self) -> dict[str, Tensor]:
        """Reads what `keep_frozen` wrote."""
        try:
            return safetensors.torch.load_file(self.frozen_file)
        except (OSError, SafetensorError, ValueError) as error:
            raise FedmtError(
                f"{self.frozen_file}: the weights of the frozen backbone cannot be read ({error}). "
                "`fedmt run` of the run's config with --resume writes the file again."
            ) from None

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self, state: State, keep: int = KEEP) -> None:
        """Writes the state, then drops all but the last `keep` checkpoints."""
        with writing(self.checkpoints):
            self.checkpoints.mkdir(exist_ok=True)
        write_atomically(self._checkpoint(state.round), dump_state(state))
        for old in self._saved()[:-keep]:
            old.unlink(missing_ok=True)

    def load(self) -> State | None:
        """The state to resume from, or None if no round was finished."""
        saved = self._saved()
        if not saved:
            return None
        try:
            return load_checkpoint(saved[-1])
        except FedmtError as error:
            before = saved[-2] if len(saved) > 1 else None
            try:
                if before is not None:
                    load_checkpoint(before)
                    offer = f"The one before, {before.name}, is intact: delete the damaged file to continue."
                else:
                    offer = "There is no other. Choose another --out to start a new run."
            except FedmtError:
                offer = f"So is the one before, {before}. Choose another --out to start a new run."
            raise FedmtError(f"{error} {offer}") from None

    def _checkpoint(self, round: int) -> Path:
        return self.checkpoints / f"round-{round:06d}.safetensors"

    def _saved(self) -> list[Path]:
        return sorted(self.checkpoints.glob("round-*.safetensors"))


def refuse_own_files(run: Path, target: Path) -> None:
    """Checks that a result does not overwrite a part of the run, or of the file, that it comes from."""
    folder, place = RunFolder(run.resolve()), target.resolve()
    files = {value for value in vars(folder).values() if isinstance(value, Path)}
    if place in files or folder.checkpoints in place.parents:
        raise FedmtError(f"{target} is a part of {run}, which is being read. Give another file.")


def existing_run(path: Path) -> RunFolder:
    """The run in a folder that should be read. If there is none, the error names runs nearby."""
    folder = RunFolder(path)
    if folder.config_file.is_file():
        return folder
    what = "is not a run folder (it has no config.toml)" if path.is_dir() else "is a file, not a run folder"
    said = f"{path} {what}" if path.exists() else f"{path}: there is no such run folder"
    if path.name == "config.toml" and path.is_file():
        raise FedmtError(f"{said}; give the folder it is in, {path.parent}.")
    inside = [str(p.parent) for p in sorted(path.glob("*/config.toml"))] if path.is_dir() else []
    if inside:
        raise FedmtError(f"{said}. There are runs in it: {listed(inside)}.")
    beside = {str(p.parent) for base in (path.parent, Path("runs")) for p in base.glob("*/config.toml")}
    by_name = {Path(b).name: b for b in sorted(beside)}
    meant = closest(path.name, by_name)
    hint = f" Did you mean '{by_name[meant]}'?" if meant is not None else ""
    raise FedmtError(f"{said}.{hint} Give a folder that `fedmt run` wrote, such as runs/federation.")


def _differences(before: str, after: str, path: Path) -> dict[str, tuple[Any, Any]]:
    """The keys in which two TOML configs differ, with both values. `path` is the file of the first."""
    try:
        old, new = _paths(tomllib.loads(before)), _paths(tomllib.loads(after))
    except tomllib.TOMLDecodeError as error:
        raise FedmtError(f"{path}: not valid TOML any more: {error}.") from None
    keys = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    return {k: (old.get(k, "not set"), new.get(k, "not set")) for k in keys}


def _shown(changed: Mapping[str, tuple[Any, Any]]) -> str:
    return cut([f"{key} ({old!r} there, {new!r} here)" for key, (old, new) in changed.items()], 4)


def _paths(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _paths(inner, f"{prefix}.{key}" if prefix else key)
    return found
