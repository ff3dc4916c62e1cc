"""What a config may say of the data: the tables `reference`, `centers`, `tests`, `benchmark`, `images`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from fedmt.data.imageset import ImageOptions
from fedmt.errors import FedmtError
from fedmt.labels import class_name


def from_config_folder(path: Path, info: ValidationInfo) -> Path:
    """Relative paths of a config are relative to its file, wherever the command runs."""
    base = (info.context or {}).get("folder")
    path = path.expanduser()
    return (Path(base) / path).resolve() if base is not None else path


ConfigPath = Annotated[Path, AfterValidator(from_config_folder)]


def by_class_name(counts: dict[str, int]) -> dict[str, int]:
    """Under the names that a LabelSpace has, so that accents written another way do not hide a class."""
    return {class_name(name): count for name, count in counts.items()}


class Section(BaseModel):
    """A table of the config; a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSpec(Section):
    """Where images and labels lie.

    source 'folder': path has a folder for each class. 'manifest': path is a CSV of `image,label`.
    'npz': arrays `images`, `labels`, `classes`. 'idx': path is the images file and `labels` the
    labels file, or path is a folder with the standard names. 'cifar100': the `cifar-100-python` folder.
    'fashion_mnist': the bundled subset. 'fitzpatrick17k': the folder of its table, with the images in
    `images` beside it or in `root`. `split`: 'train' or 'test', for those that have both. 'remote': the data
    stay on the center's own machine, which alone knows where they lie (docs/deployment.md).
    """

    source: Literal[
        "folder", "manifest", "npz", "idx", "cifar100", "fashion_mnist", "fitzpatrick17k", "remote"
    ]
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


Count = Annotated[int, Field(ge=1)]


class BenchmarkSpec(Section):
    """One labelled set split into a federation.

    data: the set; test: its test part (not needed for sources that have one).
    wanted: the space of the reference center. spaces: how many centers label in each other space.
    split: 'iid', or 'non-iid' with `gamma`. samples: at each center (none: as many as there are).
    At the reference center, one of: per_class, images of each class; reference_share, of each class.

    test_per_class: so many images of each class of `data` are the test set, set aside before all else.
    test_samples: at most so many test images, balanced over the classes.
    at_most: classes sampled down. augment_to: pairs (below, to); a class of fewer than `below` training
    images is filled up to `to` with augmented copies, by the first pair that fits.
    subset: only the first so many classes of the first other space, and what occurs with them.
    """

    data: SourceSpec
    test: SourceSpec | None = None
    wanted: str
    spaces: dict[str, Annotated[int, Field(ge=0)]]
    split: Literal["iid", "non-iid"] = "iid"
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.1
    per_class: Count | None = None
    reference_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    samples: Count | None = None
    test_per_class: Count | None = None
    test_samples: Count | None = None
    at_most: Annotated[dict[str, Count], AfterValidator(by_class_name)] = Field(default_factory=dict)
    augment_to: tuple[tuple[Count, Count], ...] = ()
    subset: Count | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> BenchmarkSpec:
        if self.per_class is None and self.reference_share is None:
            raise FedmtError(
                "benchmark.per_class: missing; say how many images of each class the reference center has, "
                "or with benchmark.reference_share which share of them."
            )
        if self.per_class is not None and self.reference_share is not None:
            raise FedmtError(
                "benchmark.reference_share: benchmark.per_class also says what the reference center has; "
                "keep one of the two."
            )
        if self.test is not None and self.test_per_class is not None:
            raise FedmtError(
                "benchmark.test_per_class: benchmark.test also says what the test images are; "
                "keep one of the two."
            )
        if self.augment_to and self.samples is not None:
            raise FedmtError(
                "benchmark.augment_to: copies would change the number of images at a center, which "
                "benchmark.samples sets; keep one of the two."
            )
        last = 0
        for below, to in self.augment_to:
            if below <= last:
                raise FedmtError(
                    f"benchmark.augment_to: [{below}, {to}] stands after {last} and is never reached; order "
                    "the pairs [below, to] by their first number."
                )
            if to < below:
                raise FedmtError(
                    f"benchmark.augment_to: [{below}, {to}] would fill a class of {below - 1} images up to "
                    f"{to}; expected pairs [below, to] with `to` at least `below`."
                )
            last = below
        return self


class CalibrationSpec(Section):
    """share: of each class of the reference center, held out from training to fit a temperature on.

    minimum: with fewer images than this held out in all, none are, and nothing is calibrated.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    minimum: Annotated[int, Field(ge=2)] = 100


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
