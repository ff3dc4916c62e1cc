"""A trained model, ready for predictions: `fedmt.load`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedmt.aggregation import packed
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.modes import usual_modes
from fedmt.core.registry import importing_only
from fedmt.data.taking import taken
from fedmt.engines.device import pick_device
from fedmt.engines.state import State
from fedmt.inputs import Input
from fedmt.models.description import Description
from fedmt.models.predictor import FROZEN, Predictor, assemble
from fedmt.models.priors import Prior, by_class, chosen, uniform, why_unknown
from fedmt.runs.checkpoints import load_checkpoint
from fedmt.runs.folder import existing_run

METADATA = "fedmt.model"
"""The metadata key under which an exported file stores its description."""


Top = list[tuple[str, float]]
"""Classes and their probabilities, the most probable first."""


class Model:
    """A model and the label spaces it answers in. Made by `fedmt.load`."""

    def __init__(
        self,
        description: Description,
        state: State,
        device: torch.device | None = None,
        network: nn.Module | None = None,
    ) -> None:
        self.description = description
        self._network = network
        self.state = state
        self.device = device or torch.device("cpu")
        self._predictors: dict[str | None, Predictor] = {}
        self._spaces = self.predictor().spaces

    def __repr__(self) -> str:
        return f"Model({self.description.method['name']}, round {self.round}, spaces {listed(self.spaces)})"

    @property
    def spaces(self) -> tuple[str, ...]:
        """The label spaces it can answer in, the wanted one first."""
        return self._spaces

    @property
    def round(self) -> int:
        """The last finished round of its training."""
        return self.state.round

    @property
    def finished(self) -> bool:
        return self.round >= self.description.rounds

    @property
    def input(self) -> Input:
        """What a sample is, and how it is converted to the model's form."""
        return self.description.asked

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one sample, under its name for images."""
        return self.input.shape

    @property
    def temperature(self) -> float | None:
        """The temperature of the calibration in the wanted space. None if there was no calibration."""
        calibration = self.description.calibration
        return float(calibration["temperature"]) if calibration else None

    def calibrated(self, space: str | None = None) -> bool:
        """Whether the temperature applies in a space."""
        return self.temperature is not None and self.from_wanted(space)

    def from_wanted(self, space: str | None = None) -> bool:
        """Whether the answers in a space are those in the wanted one or are projected from them, so that the
        temperature and the prior apply. They do not apply to a space with its own head."""
        known = self._known(space)
        return known == self.spaces[0] or known not in self.predictor().parts

    def classes(self, space: str | None = None) -> tuple[str, ...]:
        """The class names of a space, by default of the wanted one, in the order of the probabilities."""
        return tuple(self.description.spaces[self._known(space)])

    @property
    def priors(self) -> dict[str, dict[str, float]]:
        """The known class frequencies, by the names that `predict` accepts: shares by class."""
        wanted = self.description.wanted
        known = {"uniform": uniform(len(wanted)), **{n: prior.shares for n, prior in self._priors.items()}}
        return {name: by_class(shares, wanted) for name, shares in known.items()}

    @property
    def prior(self) -> Prior | None:
        """The default prior of its answers. None if an earlier version did not record it."""
        return self.description.prior or self.description.own_prior

    def answering_for(self, prior: Any) -> Model:
        """The same model with another default prior. It is given as in `predict`."""
        made = copy.copy(self)
        made.description = replace(self.description, prior=self._chosen(prior))
        made._predictors = {}
        return made

    @overload
    def predict(
        self,
        samples: Any,
        space: str | None = ...,
        top: None = ...,
        center: str | None = ...,
        prior: Any = ...,
    ) -> Tensor: ...
    @overload
    def predict(
        self, samples: Any, space: str | None = ..., *, top: int, center: str | None = ..., prior: Any = ...
    ) -> list[Top]: ...
    @usual_modes()
    def predict(
        self,
        samples: Any = None,
        space: str | None = None,
        top: int | None = None,
        center: str | None = None,
        prior: Any = None,
        *,
        images: Any = None,
    ) -> Tensor | list[Top]:
        """Probabilities [N, J] of the classes of `space`, by default of the wanted one.

        samples: an array or tensor, a `torch.utils.data.Dataset`, whose labels are ignored, or anything else
            that the model's input accepts. For images, see `fedmt.inputs.images.asking.batches`.
        top: instead, the number of most probable classes to return for each sample, as (name, probability).
        images: the same as `samples`, for earlier code.
        center: use this center's own matrix or head, if `space` has one for each center. By default, all of
        them count equally.
        prior: how frequent the wanted classes will be: 'uniform'; as at the 'reference' center (among the
            samples that it trained on, plus one of each class) or at the 'centers' (as they estimate), where
            that is known (`priors`); a file of classes and shares; shares by class; or an array of shares, in
            the order of the classes. By default, the prior that the model was trained for
            (`prior`): equally frequent classes, unless training.logit_adjustment was off.
        """
        samples = images if samples is None else samples
        if samples is None:
            raise FedmtError(f"predict: no {self.input.word}s are given.")
        if isinstance(samples, Dataset):
            samples, _ = taken(samples, None, "predict", "")
        space = self._known(space)
        if top is not None and top < 1:
            raise FedmtError(f"top: {top} given, expected at least 1.")
        shift = None if prior is None else self._shift(prior, space)
        found = [self.scores(batch, space, center, shift) for batch in self.input.batches(samples)]
        if not found:
            raise FedmtError(f"No {self.input.word}s to predict.")
        probabilities = torch.cat(found)
        return probabilities if top is None else best(probabilities, self.classes(space), top)

    @torch.no_grad()
    def scores(
        self, samples: Tensor, space: str, center: str | None = None, log_shift: Tensor | None = None
    ) -> Tensor:
        """Probabilities [B, J] on the CPU for one batch of samples in the stored form. log_shift: the shift
        of a prior (`Predictor`)."""
        if center is not None:
            self.check_center(space, center)
        predictor = self.predictor(center)
        return predictor.answer(samples.to(self.device), [space], log_shift)[0].float().cpu()

    def check_prior(self, space: str) -> None:
        """Raises an error unless the prior of the wanted classes matters in `space`."""
        if not self.from_wanted(space):
            raise FedmtError(
                f"prior: '{space}' has its own head, which a prior of '{self.spaces[0]}' does not change. "
                f"Leave out the prior, or predict in '{self.spaces[0]}'."
            )

    def _shift(self, prior: Any, space: str) -> Tensor:
        self.check_prior(space)
        return self.description.log_shift(self._chosen(prior)).to(self.device)

    def _chosen(self, prior: Any) -> Prior:
        about = self.description
        missing = why_unknown(about.method, about.known_estimates(self.state.kept), about.private)
        found = chosen(prior, about.wanted, self._priors, missing)
        about.log_shift(found)  # raises an error if an earlier version wrote the model
        return found

    @cached_property
    def _priors(self) -> dict[str, Prior]:
        return self.description.known_priors(self.state.kept)

    def check_center(self, space: str, center: str) -> None:
        """Raises an error unless `center` has its own answer in `space`."""
        own = self.predictor(center).spaces[1:]
        if space not in own:
            raise FedmtError(
                f"Center '{center}' does not have its own answer in '{space}'. It has one in: "
                f"{listed(own) or 'no space'}."
            )

    def predictor(self, center: str | None = None) -> Predictor:
        """The module behind it, on the model's device; `center` as in `predict`."""
        if center not in self._predictors:
            names = [m.name for m in self.description.roster.members]
            if center is not None and center not in names:
                raise FedmtError(f"No center '{center}'.{nearest(center, names)} There are {listed(names)}.")
            made = assemble(self.description, self.state, center, self._network)
            self._predictors[center] = made.to(self.device)
        return self._predictors[center]

    def _known(self, space: str | None) -> str:
        """The name of a space that it can answer in. None means the wanted one."""
        if space is None:
            return self.spaces[0]
        if space in self.spaces:
            return space
        can = f"This model answers in {listed(self.spaces)}."
        if space in self.description.spaces:
            raise FedmtError(
                f"No answer in label space '{space}': method '{self.description.method['name']}' has neither "
                f"a correspondence nor a trained head for it after round {self.round}. {can}"
            )
        raise FedmtError(f"No label space '{space}'.{nearest(space, self.spaces)} {can}")


def best(probabilities: Tensor, classes: Sequence[str], top: int) -> list[Top]:
    """The `top` most probable classes of each row, or all if there are fewer. Among equals, the first comes
    first."""
    values, index = probabilities.sort(dim=1, descending=True, stable=True)
    return [
        [(classes[i], value) for i, value in zip(row, scores, strict=True)]
        for row, scores in zip(index[:, :top].tolist(), values[:, :top].tolist(), strict=True)
    ]


@usual_modes()
def load(
    path: str | Path,
    device: str = "auto",
    model: nn.Module | None = None,
    allow: Collection[str] | None = (),
) -> Model:
    """Loads the model of a run folder, or of a file that `fedmt export --safetensors` wrote. If the run is
    not finished, it is the model of the last saved round. The training data is not needed.

    device: 'auto', 'cpu', 'cuda' or 'cuda:1'.
    model: the module that the run was trained with, if it was your own; its weights do not matter.
    allow: the names, as 'package.module:Name', of your own code that the model may import. No other code is
        imported. None allows any.
    """
    path, where = Path(path), pick_device(device)
    if path.is_file():
        description, state = _from_file(path, allow)
    else:
        description, state = _from_folder(path, allow)
    try:
        with importing_only(allow):
            return Model(description, state, where, model)
    except FedmtError as error:
        raise FedmtError(f"{path}: {error}") from None


def _from_folder(path: Path, allow: Collection[str] | None) -> tuple[Description, State]:
    folder = existing_run(path)
    if not folder.model_file.exists():
        raise FedmtError(
            f"{path} has no model.json: the run was made by an older fedmt, or has not begun. `fedmt run` of "
            "its config with --resume writes the file; rounds that are done are not trained again."
        )
    description = Description.from_json(_text(folder.model_file), folder.model_file, allow)
    state = folder.load()
    if state is None:
        raise FedmtError(f"{path}: no round has finished yet, so there is no model to load.")
    if description.frozen is not None:
        state = replace(state, server={**state.server, **packed(FROZEN, folder.frozen())})
    return description, state


def _from_file(path: Path, allow: Collection[str] | None) -> tuple[Description, State]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        if path.suffix == ".safetensors":
            raise FedmtError(f"{path}: the file is damaged ({error}); export it again.") from None
        where = f"; give the folder it is in, {path.parent}" if path.name == "config.toml" else ""
        raise FedmtError(
            f"{path} is neither a run folder, such as runs/federation, nor a safetensors file of `fedmt "
            f"export`{where}."
        ) from None
    if METADATA not in metadata:
        raise FedmtError(
            f"{path}: this file has weights without a description of their model. Give the run folder, or a "
            "file that `fedmt export --safetensors` wrote."
        )
    return Description.from_json(metadata[METADATA], path, allow), load_checkpoint(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedmtError(f"{path}: cannot be read ({error}).") from None
