"""What a sample is. An `Input` defines how samples are stored, normalized, augmented, shown and exported.

Everything else in fedmt treats a sample as one row of a tensor. Images are the first input; to add another,
write a subclass of `Input` and one of `Views`, and name it in a config as `input = "package.module:Name"`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import GetCoreSchemaHandler
from pydantic_core.core_schema import CoreSchema, is_instance_schema
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.registry import Named
from fedmt.core.section import Section
from fedmt.inputs.arrays import as_tensor, count_not_finite


class Views(ABC):
    """How a sample is seen in training: the config's table [augmentation].

    Randomness is data. A view is a pure function of the samples and of uniform numbers, one row per sample,
    so that every engine and device makes the same views. A subclass is a frozen dataclass whose fields are
    the table's keys.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """An object of the views' class. If a config names a class, its fields are the keys."""
        return is_instance_schema(cls) if cls is Views else handler(source)

    @property
    @abstractmethod
    def weak_numbers(self) -> int:
        """Uniform numbers per sample that `weak` uses."""

    @property
    @abstractmethod
    def strong_numbers(self) -> int:
        """Uniform numbers per sample that `strong` uses."""

    @property
    def mix_numbers(self) -> int:
        """Uniform numbers per sample that `mixed` uses."""
        return 0

    def on(self, input: Input) -> Views:
        """The views of this input's samples, if they depend on what the input knows about them."""
        return self

    @abstractmethod
    def weak(self, samples: Tensor, uniforms: Tensor) -> Tensor:
        """A small change: converts stored samples [B, ...] and uniforms [B, weak_numbers] to what a network
        sees."""

    @abstractmethod
    def strong(self, views: Tensor, samples: Tensor, uniforms: Tensor) -> Tensor:
        """A large change that keeps the class, made from the weak views and the stored samples behind
        them."""

    def mixed(self, views: Tensor, partners: Tensor, share: Tensor, uniforms: Tensor | None) -> Tensor:
        """Weak views [S, B, ...] mixed with their partners'.

        share [S, 1, ...]: how much of a mixed view is the sample's own. uniforms: [S, B, mix_numbers].
        """
        return share * views + (1 - share) * partners


@dataclass(frozen=True, eq=False)
class Item:
    """One sample to predict: its name for the user, the place that named it, and where it can be read."""

    name: str
    where: str
    path: Path


@dataclass(frozen=True, eq=False)
class Batch:
    """Some items in order. `errors` has None for each item that could be read. `samples` holds only these."""

    items: Sequence[Item]
    errors: Sequence[str | None]
    samples: Tensor


@dataclass(frozen=True)
class Input(Named, ABC):
    """shape: the shape of one stored sample. Two centers fit each other if their inputs are equal."""

    word: ClassVar[str] = "sample"
    """What a message calls one sample; the plural adds an 's'."""
    shaped_by: ClassVar[str] = ""
    """The keys of a config that decide the shape of a sample, as a message names them."""
    views: ClassVar[type[Views]]
    """The options class of the config's table [augmentation]."""
    options: ClassVar[type[Section]] = Section
    """The options class of the config's table with the input's name."""
    dtype: ClassVar[torch.dtype] = torch.float32
    """The type of a stored sample."""
    memory_format: ClassVar[torch.memory_format] = torch.contiguous_format
    """The memory layout in which networks are fastest with it."""
    backbone: ClassVar[str] = "resnet18"
    """The default network, if a config names none."""
    seen_as: ClassVar[str | None] = None
    """Another input whose networks accept what a network sees of this one."""

    shape: tuple[int, ...]

    # -- what is stored ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def of(cls, samples: Tensor, where: str) -> Input:
        """The input that these stored samples [N, ...] belong to. Raises an error that names `where` if they
        do not fit."""

    @classmethod
    def stored(cls, given: Any, where: str) -> Tensor:
        """Converts a user's array, or list of samples, to the stored form [N, ...]. where: prefix of the
        error messages."""
        samples = as_tensor(given, where)
        broken = count_not_finite(samples)
        if broken:
            raise FedmtError(f"{where}: {broken:,} of {samples.numel():,} values are NaN or infinite.")
        return samples.to(cls.dtype).contiguous()

    def settled(self, samples: Tensor) -> Input:
        """The input with everything that the reference center's samples determine for the whole
        federation."""
        return self

    def fits(self, other: Input) -> bool:
        """Whether samples of this input are also samples of `other`, the reference center's input."""
        return self == other

    def mismatch(self, other: Input) -> str:
        """Why a center with `other` does not fit a reference center with this input, and what to do."""
        return f"{self.word}s of shape {other.shape}, the reference center {self.shape}"

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape of one sample as a network sees it."""
        return self.shape

    @property
    def extent(self) -> int:
        """The number of positions of a sample that a network visits. It determines the size of batches."""
        return math.prod(self.shape)

    def blank(self, count: int) -> Tensor:
        """Samples without content, for trying out a network."""
        return torch.zeros((count, *self.shape), dtype=self.dtype)

    @classmethod
    def scaled_down(cls, options: Section) -> Mapping[str, Any]:
        """The input's options to change for a quick trial of a large experiment."""
        return {}

    @classmethod
    def without_reference(cls, options: Section) -> Section:
        """The options with which a center can check its samples if it does not know the reference
        center's."""
        return options

    def as_read(self, options: Section) -> Input:
        """This input with what the options say about the files, so that it reads them as in training."""
        return self

    def reading(self, cache: Path) -> Section:
        """The options with which a center on another machine reads its samples as this input.

        cache: the center's own folder, for what should be prepared only once.
        """
        return self.options()

    # -- what a network sees ----------------------------------------------------------------------

    def plain(self, samples: Tensor) -> Tensor:
        """Stored samples [B, ...] as a network sees them without augmentation."""
        return samples.to(torch.float32)

    def statistics(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of plain samples, each broadcastable to [B, ...]; by default per
        value."""
        plain = self.plain(samples).double()
        deviation = plain.std(0, unbiased=False, keepdim=True).clamp_min(1e-3)
        return plain.mean(0, keepdim=True).float(), deviation.float()

    def pretrained_statistics(
        self, published: tuple[Sequence[float], Sequence[float]] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same for the data that published weights were trained on, if the input knows it."""
        raise FedmtError(f"model.normalize: 'imagenet' is for images; these samples are {self.word}s.")

    @property
    def identity_statistics(self) -> tuple[Tensor, Tensor]:
        """Zeros and ones in the shape of `statistics`, for a network that receives its own."""
        mean, std = self.statistics(self.blank(1))
        return torch.zeros_like(mean), torch.ones_like(std)

    @property
    def network_arguments(self) -> Mapping[str, int]:
        """The keyword arguments, besides `classes`, with which a user's own network is built."""
        return {}

    def copies(self, samples: Tensor, chosen: Tensor, views: Views, rng: np.random.Generator) -> Tensor:
        """Augmented copies of the samples at `chosen` [m], in the stored form, to fill up small classes."""
        raise FedmtError(f"benchmark.augment_to: copies of {self.word}s cannot be augmented; leave it out.")

    # -- what a person sees -----------------------------------------------------------------------

    def preview(self, sample: Tensor) -> Mapping[str, str]:
        """One stored sample for the report: {'image': data URL} or {'text': words}."""
        return {"text": ", ".join(f"{value:.4g}" for value in sample.flatten().tolist()[:12])}

    def signature(self) -> dict[str, Any]:
        """What an exported model expects: the layout and preparation of one stored sample."""
        return {"type": str(self.dtype).removeprefix("torch."), "shape": ["batch", *self.shape]}

    def example(self, count: int, generator: torch.Generator) -> Tensor:
        """Random stored samples, to compare an exported model with its original."""
        return torch.rand((count, *self.shape), generator=generator).to(self.dtype)

    # -- what a model is asked about --------------------------------------------------------------

    def batches(self, given: Any) -> Iterator[Tensor]:
        """Converts whatever a user passes to `Model.predict` to stored samples, one batch at a time."""
        samples = torch.as_tensor(np.asarray(given) if not isinstance(given, Tensor) else given)
        if tuple(samples.shape[1:]) != self.shape:
            raise FedmtError(
                f"{self.word}s of shape {tuple(samples.shape)}; expected (N, *{self.shape}) for N "
                f"{self.word}s."
            )
        yield from samples.to(self.dtype).split(256)

    def find(self, paths: Sequence[Path], column: str | None, notes: list[str]) -> list[Item]:
        """The samples that `fedmt predict` should predict. `notes` lists what is skipped."""
        raise self._no_files()

    def read(self, items: Sequence[Item]) -> Iterator[Batch]:
        """All items that `find` has found, one batch at a time."""
        raise self._no_files()

    def _no_files(self) -> FedmtError:
        return FedmtError(f"`fedmt predict` cannot read {self.word}s from files; use fedmt.load in Python.")
