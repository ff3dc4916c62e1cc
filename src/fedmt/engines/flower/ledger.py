"""The part of its privacy budget that a center has spent, in its state folder: `privacy.json`.

It counts all rounds of all runs that the center took part in with this folder, answered or not, because
anything computed may have been seen. The coordinator can neither read nor reset it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.privacy import Cost, Ledger, PrivacySpec
from fedmt.runs.files import write_atomically, writing

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class LedgerFile:
    """state: the center's own folder."""

    state: Path

    @property
    def path(self) -> Path:
        return self.state / "privacy.json"

    def read(self) -> Ledger:
        """Nothing was spent if there is no file. A file that cannot be read is an error, not an empty
        ledger."""
        try:
            return Ledger.from_rows(json.loads(self.path.read_text())["steps"])
        except FileNotFoundError:
            return Ledger()
        except (FedmtError, OSError, ValueError, KeyError, TypeError) as error:
            raise FedmtError(
                f"{self.path}: the spent privacy budget cannot be read ({error}). Restore the file from a "
                "backup. Without it, nothing may be sent."
            ) from None

    def charge(self, kept: Mapping[str, Tensor], costs: Sequence[Cost], spec: PrivacySpec) -> Ledger:
        """Records a round before it is computed. Raises `Overspent` if it would exceed the budget."""
        with self._locked():
            after = self.read().afford(costs, spec)
            spent = {"epsilon": after.epsilon(spec.delta), "delta": spec.delta}
            text = json.dumps({"spent": spent, "steps": after.costs}, indent=1)
            write_atomically(self.path, text.encode())
        return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock, so that two messages at once cannot spend the same budget."""
        with writing(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("w")
        with file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
