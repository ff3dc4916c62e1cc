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
    """What is to be read.

    spec: the config's table. options: the config's table of the input, such as [images]. space: the label
    space to read labels in; None: no labels. where: begins the errors. split: for sources that have both
    parts.
    """

    spec: SourceSpec
    options: Section
    space: LabelSpace | None
    where: str
    split: Split

    @property
    def path(self) -> Path:
        assert self.spec.path is not None  # `read_source` refuses a source that needs one and has none
        return self.spec.path

    @property
    def images(self) -> ImageOptions:
        """How images are brought into one tensor."""
        assert isinstance(self.options, ImageSpec)
        return self.options.options()


class Source(Named, ABC):
    """Base of the sources; one object of it is made for each read."""

    input: ClassVar[str | None] = "images"
    """The input that it reads, by its name in a config; None: any."""
    needs_path: ClassVar[bool] = True

    @abstractmethod
    def read(self, request: Request) -> SampleSet:
        """Samples and labels; what cannot be read is a FedmtError that names the file or line."""

    def has_test_part(self, spec: SourceSpec) -> bool:
        """Whether it holds training and test samples of one set."""
        return False
