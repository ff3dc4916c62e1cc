"""TensorBoard: event files in RUN/tensorboard, where `tensorboard --logdir runs` finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fedmt.metrics import HEADLINE
from fedmt.tracking import hyperparameters, plain, scalars


class TensorBoard:
    """Writes every round again when it is opened, because an event file cannot be corrected, only
    replaced."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        place = folder / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        # purge_step: a TensorBoard that has read the old files forgets their rounds.
        self._writer = SummaryWriter(str(place), purge_step=0)
        text = tomli_w.dumps(dict(config))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))
        # Not add_hparams, which would put them into a separate folder and therefore a separate run. With
        # them, TensorBoard shows the headline in the wanted space.
        wanted = config.get("wanted") or config.get("benchmark", {}).get("wanted", "")
        to_file: Any = self._writer.file_writer
        for summary in hparams(hyperparameters(config), {f"{HEADLINE}/{plain(wanted)}": 0.0}):
            to_file.add_summary(summary)

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()
