"""What must be known of a model beside its weights: `model.json` in the run folder.

With it and a checkpoint a model predicts in every label space of its federation, without the data.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError
from fedmt.labels import Correspondence, LabelSpace
from fedmt.methods import METHODS, Method
from fedmt.registry import option_names

FORMAT = "fedmt-model-1"


@dataclass(frozen=True)
class Source:
    """A center or test set: its name, the label space, how many images where they are not on another machine;
    and its correspondence where that is known (rows: its classes, columns: the wanted ones)."""

    name: str
    samples: int | None
    space: str | None = None
    correspondence: list[list[float]] | None = None


@dataclass(frozen=True)
class Description:
    """spaces: name to classes, the wanted one first, in the order of the model's heads.

    image_shape: channels, height, width. method: its name and options. rounds: how many there will be.
    calibration: the temperature and how it was found, once the run is finished and if images were held out.
    """

    spaces: dict[str, list[str]]
    image_shape: tuple[int, int, int]
    backbone: str
    max_pool: bool | None
    method: dict[str, Any]
    rounds: int
    batch_norm: str
    reference: Source
    centers: list[Source]
    tests: list[Source]
    calibration: dict[str, Any] | None = None

    @property
    def wanted(self) -> LabelSpace:
        return self.space(next(iter(self.spaces)))

    def space(self, name: str) -> LabelSpace:
        return LabelSpace(name, self.spaces[name])

    def build_method(self) -> Method:
        options = {k: v for k, v in self.method.items() if k != "name"}
        return TypeAdapter(METHODS.find(self.method["name"], "method.name")).validate_python(options)

    def federation(self, only: str | None = None) -> Federation:
        """The federation without its data, a black pixel for each center: what a method asks of it to say how
        it predicts in each space. only: with this one center."""
        channels = self.image_shape[0]
        pixel = torch.zeros(1, channels, 1, 1, dtype=torch.uint8)
        wanted, label = self.wanted, torch.zeros(1, dtype=torch.int64)
        centers = []
        for center in self.centers:
            if only is not None and center.name != only:
                continue
            if center.space is None:
                centers.append(Center(center.name, pixel))
                continue
            space, matrix, possible = self.space(center.space), None, label
            if center.correspondence is not None:
                matrix = Correspondence(center.correspondence, wanted, space, "model.json")
                possible = (
                    matrix.matrix.sum(1).argmax().view(1)
                )  # a label that no wanted class has is refused
            centers.append(Center(center.name, pixel, space, possible, matrix))
        return Federation(wanted, Center(self.reference.name, pixel, wanted, label), tuple(centers))

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, text: str, where: str | Path) -> Description:
        """Checks what was written by `to_json`; `where` goes into the errors."""
        try:
            raw = json.loads(text)
            found = raw.pop("format", None)
        except (ValueError, AttributeError):
            raise FedmtError(f"{where}: not valid JSON, so the model cannot be loaded.") from None
        if found != FORMAT:
            raise FedmtError(
                f"{where}: written by another version of fedmt (format {found}, here {FORMAT}); use that "
                "version, or train again."
            )
        try:
            described: Description = TypeAdapter(cls).validate_python(raw)
            described.build_method()
            return described
        except (ValidationError, KeyError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": error.args}
            key = ".".join(map(str, first["loc"]))
            raise FedmtError(
                f"{where}: '{key}' is missing or not as fedmt writes it; the file was changed or damaged."
            ) from None
        except FedmtError as error:  # its method is not found here, or refuses its options
            raise FedmtError(f"{where}: {error}") from None


def describe(federation: Federation, method: Method, backbone: str, max_pool: bool | None) -> Description:
    """The description of the model that a run of `method` on `federation` makes."""
    options = {name: getattr(method, name) for name in option_names(type(method))}
    return Description(
        spaces={space.name: list(space.classes) for space in federation.spaces},
        image_shape=federation.image_shape,
        backbone=backbone,
        max_pool=max_pool,
        method={"name": METHODS.name_of(type(method)), **options},
        rounds=method.training.rounds,
        batch_norm=method.training.batch_norm,
        reference=_source(federation.reference),
        centers=[_source(c) for c in federation.centers],
        tests=[_source(t) for t in federation.tests],
    )


def _source(center: Center) -> Source:
    known = center.correspondence
    matrix: list[list[float]] | None = known.matrix.tolist() if known is not None else None
    samples = None if center.remote else len(center)
    return Source(center.name, samples, center.space.name if center.space else None, matrix)


def with_calibration(description: Description, calibration: Mapping[str, Any]) -> Description:
    return dataclasses.replace(description, calibration=dict(calibration))
