"""What a config may say of the data: the tables `reference`, `centers`, `tests`, `benchmark`, `images`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from fedmt.data.imageset import ImageOptions


def _from_config_folder(path: Path, info: ValidationInfo) -> Path:
    """Relative paths of a config are relative to its file, wherever the command runs."""
    base = (info.context or {}).get("folder")
    path = path.expanduser()
    return (Path(base) / path).resolve() if base is not None else path


ConfigPath = Annotated[Path, AfterValidator(_from_config_folder)]


class Section(BaseModel):
    """A table of the config; a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSpec(Section):
    """Where images and labels lie.

    source 'folder': path has a folder for each class. 'manifest': path is a CSV of `image,label`.
    'npz': arrays `images`, `labels`, `classes`. 'idx': path is the images file and `labels` the
    labels file, or path is a folder with the standard names. 'cifar100': the `cifar-100-python` folder.
    'fashion_mnist': the bundled subset. `split`: 'train' or 'test', for those that have both.
    """

    source: Literal["folder", "manifest", "npz", "idx", "cifar100", "fashion_mnist"]
    path: ConfigPath | None = None
    labels: ConfigPath | None = None
    split: Literal["train", "test"] | None = None
    image_column: str = "image"
    label_column: str = "label"
    root: ConfigPath | None = None


CorrespondenceSpec = ConfigPath | dict[str, str | dict[str, float]]
"""A CSV file, or a table `{wanted class = "class"}` or `{wanted class = {class = probability}}`."""


class CenterSpec(SourceSpec):
    """A center: a source, the space it labels in (none: it has no labels), and its correspondence."""

    name: str = Field(min_length=1)
    space: str | None = None
    correspondence: CorrespondenceSpec | None = None


class ReferenceSpec(SourceSpec):
    """The reference center; it labels in the wanted space."""

    name: str = "reference"


class TestSpec(SourceSpec):
    """Test images, labelled in `space` (the wanted one if not said)."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    space: str | None = None


class BenchmarkSpec(Section):
    """One labelled set split into a federation.

    data: the set; test: its test part (not needed for sources that have one).
    wanted: the space of the reference center. spaces: how many centers label in each other space.
    split 'iid' or 'non-iid' with `gamma`; `per_class` images a class at the reference center; `samples`
    at each center (none: as many as there are).
    """

    data: SourceSpec
    test: SourceSpec | None = None
    wanted: str
    spaces: dict[str, Annotated[int, Field(ge=0)]]
    split: Literal["iid", "non-iid"] = "iid"
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.1
    per_class: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)] | None = None


class ImageSpec(Section):
    """size: a number or [height, width]; none: as stored. cache: for sets that do not fit in memory."""

    size: int | tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    cache: ConfigPath | None = None
    memory_limit_gib: Annotated[float, Field(gt=0)] = 2.0

    def options(self) -> ImageOptions:
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        cache = self.cache or Path.home() / ".cache" / "fedmt"
        return ImageOptions(size, self.channels, cache, int(self.memory_limit_gib * 2**30))
