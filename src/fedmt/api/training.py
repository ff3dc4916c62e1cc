"""`fedmt.train`: trains a model on a federation in memory, in the same way as `fedmt run`."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedmt.api.options import config_of
from fedmt.api.result import ARRAYS, Result
from fedmt.backbones.given import copied
from fedmt.core.errors import FedmtError
from fedmt.core.modes import usual_modes
from fedmt.data.center import Federation
from fedmt.runs.folder import RunFolder
from fedmt.training.notebook import Line, in_notebook
from fedmt.training.progress import Display, make_console
from fedmt.training.run import Observer, Stopped, run_arrays


@usual_modes()
def train(
    federation: Federation,
    model: str | nn.Module | Mapping[str, Any] | None = None,
    method: str | type | Mapping[str, Any] = "fedmt",
    strategy: str | type | Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **options: Any,
) -> Result:
    """Trains a model on a federation and returns the `Result`.

    model: the name of a backbone, or any `nn.Module` that maps a batch to logits [N, K] or to features [N,
        D]; features get a linear head. They are distinguished by their number: K is the number of wanted
        classes. If there are K features, pass `head=True`. The module itself is not changed.
    method, strategy: like `method.name` and `aggregation.name` in a config. A dictionary is the whole table.
    options: every other option of a config, by its name (`learning_rate=0.05`, `xi=0.9`), or by tables
        (`training={"learning_rate": 0.05}`), which is needed if two tables have an option of the same name.
    out: the run folder; by default, a temporary one that is deleted with the result. resume: continue the run
        in `out` from its last finished round. The result is the same as without the interruption.
    progress: show the rounds, in a terminal or a notebook.

    Ctrl-C raises KeyboardInterrupt. Every finished round is then saved in `out`, and the same call with
    `resume=True` continues.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((8, 8, 8))
    >>> federation = Federation.from_arrays(
    ...     wanted=["melanoma", "nevus"], reference=(x, [0, 1] * 4), test=(x, [0, 1] * 4),
    ...     centers={"Berlin": (x, ["malignant", "benign"] * 4, "triage")},
    ...     spaces={"triage": ["malignant", "benign"]})
    >>> result = train(federation, model="small_cnn", rounds=1, warmup_epochs=1, progress=False)
    >>> result.predict(x[:2], space="triage").shape
    torch.Size([2, 2])
    """
    _check_given(federation)
    if resume and out is None:
        raise FedmtError("resume: name the folder of the run to continue with out=...")
    folder = Path(out) if out is not None else None
    if folder is not None and not resume:
        _refuse_if_taken(folder)
    # A folder that `Result.save` wrote keeps the arrays, and its config names their files.
    kept = folder / ARRAYS if folder is not None and (folder / ARRAYS).is_dir() else None
    named = {**({} if rounds is None else {"rounds": rounds}), "seed": seed, **options}
    config, network = config_of(federation, model, method, strategy, named, kept)
    network = None if network is None else copied(network)  # the result predicts with it later
    if network is not None and config.model.head and "head" not in options:
        federation = _with_note_on_head(federation, network)
    temporary = None
    if folder is None:
        temporary = Path(tempfile.mkdtemp(prefix="fedmt-"))
        folder = temporary / "run"
    try:
        with _shown(config.method["name"], progress) as observer:
            run_arrays(config, federation, folder, resume, observer, network)
        result = Result(folder, network=network, allow=None)  # its code was named in this call
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, Stopped | KeyboardInterrupt):
            raise KeyboardInterrupt(_stopped(out)) from None
        raise
    result._federation = federation
    if temporary is not None:
        result._temporary = True
        weakref.finalize(result, shutil.rmtree, temporary, ignore_errors=True)
    return result


def _with_note_on_head(federation: Federation, network: nn.Module) -> Federation:
    note = (
        f"model: the outputs of {type(network).__name__} are not {len(federation.wanted)}, the number of "
        "wanted classes, so they are taken as features, and a linear head is added."
    )
    return replace(federation, notes=(*federation.notes, note))


@contextmanager
def _shown(title: str, progress: bool) -> Iterator[Observer | None]:
    """What shows the rounds, in a notebook or a terminal. None without `progress`."""
    if not progress or in_notebook():
        yield Line(title) if progress else None
        return
    display = Display(make_console(), title)
    with display.watching():
        yield display


def _check_given(federation: Federation) -> None:
    if not isinstance(federation, Federation):
        raise FedmtError(
            f"federation: an object of type {type(federation).__name__}; expected a fedmt.Federation, such "
            "as fedmt.Federation.from_arrays makes."
        )
    if federation.elsewhere:
        raise FedmtError(
            "federation: some of its centers are on other machines; see docs/guides/deployment.md."
        )
    if federation.held_out is not None:
        raise FedmtError(
            "federation: samples are already held out. Pass calibration={...} to `train` instead."
        )


def _refuse_if_taken(folder: Path) -> None:
    if RunFolder(folder).config_file.exists():
        raise FedmtError(
            f"{folder} already holds a run. Continue it with resume=True, or give another out=..."
        )
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        what = "is a file" if folder.is_file() else "is not empty"
        raise FedmtError(f"{folder} {what}; give another out=...")


def _stopped(out: str | Path | None) -> str:
    if out is None:
        return "Stopped. Nothing is kept, because the run had no folder. Give out=... to be able to resume."
    return (
        "Stopped. Every finished round is saved. Continue with the same call and resume=True: "
        f"fedmt.train(..., out={str(out)!r}, resume=True)."
    )
