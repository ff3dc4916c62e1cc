"""What a source is: a place that samples and labels are read from, named in a config by `source`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedmt.core.labels import LabelSpace
from fedmt.core.registry import Named
from fedmt.core.section import Section
from fedmt.data.sampleset import SampleSet, Split
from fedmt.data.specs import SourceSpec
from fedmt.inputs.images import ImageSpec
from fedmt.inputs.images.shaping import ImageOptions


@dataclass(frozen=True, eq=False)
class Request:
    """A request to read a source.

    spec: the config's table. options: the config's table of the input, such as [images]. space: the label
    space to read labels in; None for no labels. where: prefix of the error messages. split: for sources that
    have a training and a test part.
    """

    spec: SourceSpec
    options: Section
    space: LabelSpace | None
    where: str
    split: Split

    @property
    def path(self) -> Path:
        assert self.spec.path is not None  # `read_source` rejects a source that needs a path and has none
        return self.spec.path

    @property
    def images(self) -> ImageOptions:
        """How images are converted to one tensor."""
        assert isinstance(self.options, ImageSpec)
        return self.options.options()


class Source(Named, ABC):
    """Base class of the sources. One object is made for each read."""

    input: ClassVar[str | None] = "images"
    """The input that it reads, by its name in a config. None means any input."""
    needs_path: ClassVar[bool] = True

    @abstractmethod
    def read(self, request: Request) -> SampleSet:
        """Reads samples and labels. Raises a FedmtError that names the file or line if something cannot be
        read."""

    def has_test_part(self, spec: SourceSpec) -> bool:
        """Whether it holds both training and test samples of one set."""
        return False
