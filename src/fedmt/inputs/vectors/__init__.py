"""Vectors: rows of numbers, such as the embeddings of an encoder.

views.py     weak and strong views
reading.py   numbers from files and arrays, and what is wrong with them
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, cut, listed
from fedmt.core.section import Section
from fedmt.inputs.arrays import as_tensor
from fedmt.inputs.base import Batch, Input, Item, Views
from fedmt.inputs.tabular import Frame, FromTable
from fedmt.inputs.vectors import reading
from fedmt.inputs.vectors.views import VectorViews, standardized

SHOWN = 6
"""Number of values in a preview."""


class VectorSpec(FromTable):
    """How vectors are read."""

    columns: str | list[str] | None = None
    """Names of a table's feature columns, or patterns such as `"emb_*"`. If it is not set, all columns but
    those of labels and groups are features."""
    array: str = "vectors"
    """Name of the array of vectors in an npz archive."""

    def samples(self, frame: Frame, aside: Collection[str]) -> tuple[Tensor, Input]:
        names = frame.chosen(self.columns, aside)
        values = reading.features(frame, names)
        return values, Vectors((len(names),), tuple(names))


@dataclass(frozen=True)
class Vectors(Input):
    """Stored unchanged as float32 [N, D]. Networks see them standardized.

    columns: the names of the features, if they have any. mean, deviation: those of each feature at the
    reference center, once a federation has determined them. They are the same for all centers and part of the
    model.
    """

    name: ClassVar[str] = "vectors"
    word: ClassVar[str] = "vector"
    views: ClassVar[type[Views]] = VectorViews
    options: ClassVar[type[Section]] = VectorSpec
    backbone: ClassVar[str] = "mlp"

    shape: tuple[int]
    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Tensor, where: str) -> Vectors:
        if samples.dtype != torch.float32 or samples.dim() != 2 or not samples.shape[1]:
            raise FedmtError(
                f"{where}: {cls.word}s must be float32 [N, features], got {samples.dtype} "
                f"{tuple(samples.shape)}."
            )
        reading.check_finite(samples, (), where)
        return cls((samples.shape[1],))

    @classmethod
    def stored(cls, given: Any, where: str) -> Tensor:
        values = as_tensor(given, where)
        if values.dim() != 2 or values.is_complex():
            kind, shape = str(values.dtype).removeprefix("torch."), tuple(values.shape)
            raise FedmtError(
                f"{where}: {cls.word}s of shape {shape} and dtype {kind}; expected floats [N, D], one row "
                f"per {cls.word}."
            )
        reading.check_finite(values.float(), (), where)
        return values.float().contiguous()

    def settled(self, samples: Tensor) -> Vectors:
        if self.mean:
            return self
        mean, deviation = column_statistics(samples)
        return replace(self, mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))

    def fits(self, other: Input) -> bool:
        same = isinstance(other, Vectors) and self == replace(other, mean=self.mean, deviation=self.deviation)
        return same and (not self.mean or self == other)

    def mismatch(self, other: Input) -> str:
        if not isinstance(other, Vectors) or other.columns == self.columns:
            return super().mismatch(other)
        here, there = set(self.columns), set(other.columns)
        said = [
            f"{word} {listed(names)}"
            for word, names in (
                ("lacks", [c for c in self.columns if c not in there]),
                ("has besides", [c for c in other.columns if c not in here]),
            )
            if names
        ]
        differs = " and ".join(said) or "has them in another order"
        return (
            f"other columns than the reference center: it {differs}. Choose the same columns for all with "
            f"{self.name}.columns"
        )

    def reading(self, cache: Path) -> Section:
        return self.options.model_validate({"columns": list(self.columns)} if self.columns else {})

    def plain(self, samples: Tensor) -> Tensor:
        return standardized(samples, self.mean, self.deviation)

    def statistics(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        if not self.mean:
            return super().statistics(samples)
        return torch.zeros(1, self.shape[0]), torch.ones(1, self.shape[0])

    @property
    def identity_statistics(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, self.shape[0]), torch.ones(1, self.shape[0])

    @property
    def network_arguments(self) -> Mapping[str, int]:
        return {"features": self.shape[0]}

    def preview(self, sample: Tensor) -> Mapping[str, str]:
        """The first few values, with their names if they have any."""
        values = [f"{value:.4g}" for value in sample.tolist()]
        if self.columns:
            values = [f"{name}: {value}" for name, value in zip(self.columns, values, strict=True)]
        return {"text": cut(values, SHOWN)}

    def signature(self) -> dict[str, Any]:
        return {**super().signature(), **({"columns": list(self.columns)} if self.columns else {})}

    def example(self, count: int, generator: torch.Generator) -> Tensor:
        normal = torch.randn((count, *self.shape), generator=generator)
        if not self.mean:
            return normal
        return torch.tensor(self.mean) + normal * torch.tensor(self.deviation)

    def batches(self, given: Any) -> Iterator[Tensor]:
        yield from reading.asked(given, self.shape[0], self.columns, self.word).split(4096)

    def find(self, paths: Sequence[Path], column: str | None, notes: list[str]) -> list[Item]:
        return reading.find_rows(paths)

    def read(self, items: Sequence[Item]) -> Iterator[Batch]:
        return reading.read_rows(items, self.decode, self.shape[0])

    def decode(self, frame: Frame) -> tuple[Tensor, list[str | None]]:
        """A table's rows as stored samples, and the error of each row, or None. Raises an error if a whole
        table does not fit."""
        return reading.decoded(frame, self.shape[0], self.columns)


def column_statistics(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, float64 [D], in float32's precision.

    A constant column, which may be a coincidence at a small reference center, gets the median deviation of
    the others. Dividing by almost 0 would blow up the values of another center.
    """
    values = samples.double()
    mean, deviation = values.mean(0), values.std(0, unbiased=False)
    constant = deviation <= 1e-6 * values.abs().amax(0).clamp_min(1e-30)
    usual = deviation[~constant].median() if (~constant).any() else torch.ones((), dtype=torch.float64)
    deviation = torch.where(constant, usual.to(deviation.device), deviation)
    return mean.float().double(), deviation.float().double()


__all__ = ["VectorSpec", "VectorViews", "Vectors", "column_statistics"]
