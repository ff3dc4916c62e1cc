"""What a config may say about the data: the tables `reference`, `centers`, `tests`, `benchmark`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedmt.core.errors import FedmtError
from fedmt.core.labels import class_name
from fedmt.core.section import ConfigPath, Section


def by_class_name(counts: dict[str, int]) -> dict[str, int]:
    """Under the names that a LabelSpace has, so that differently encoded accents do not hide a class."""
    return {class_name(name): count for name, count in counts.items()}


class SourceSpec(Section):
    """Where samples and labels are stored."""

    source: str
    """Kind of source; see the table of sources. Your own is `"package.module:Name"`."""
    path: ConfigPath | None = None
    """File or folder to read."""
    labels: ConfigPath | None = None
    """Second file with the labels, for sources that have one (`npy`, `idx`)."""
    split: Literal["train", "test"] | None = None
    """Part to read, for sources that have both a training and a test part."""
    image_column: str = "image"
    """Column of a manifest with the paths of the images."""
    label_column: str = "label"
    """Column with the labels."""
    root: ConfigPath | None = None
    """Folder that the paths in a manifest are relative to. If it is not set, it is the manifest's folder."""
    # There is no default, so that an unset key is not written into a run's config and older runs can be
    # resumed.
    text_column: str | None = None
    """Column with the texts, for source `text`. If it is not set, it is `text`."""
    label_columns: dict[str, str] | None = None
    """Columns of several label spaces, as `{space = "column"}`. Give it instead of `label_column`."""
    group_column: str | None = None
    """Column that names a group, such as a patient. No split separates samples of one group, and intervals of
    test results count groups."""
    site_column: str | None = None
    """Column of a test set with the site of each sample. The report shows the results of each site."""


CorrespondenceSpec = ConfigPath | dict[str, str | dict[str, float]]
"""A CSV file, or a table `{wanted class = "class"}` or `{wanted class = {class = probability}}`."""


def fingerprint_at(where: str, key: str) -> str:
    """A fingerprint as it was given. Anything else is rejected."""
    if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", key):
        raise FedmtError(
            f"{where}: {key!r} given, expected the fingerprint of a public key, 'SHA256:' and 43 characters, "
            "as `ssh-keygen -lf berlin.pub` prints it."
        )
    return key


class CenterSpec(SourceSpec):
    """A center: its data, the label space it uses, and how that space corresponds to the wanted one."""

    name: str = Field(min_length=1)
    """Name of the center, which also seeds its random numbers."""
    space: str | None = None
    """Label space of its labels. Leave it out for a center without labels."""
    correspondence: CorrespondenceSpec | None = None
    """How its labels correspond to the wanted ones: a CSV file or a table. It takes precedence over
    `[correspondences]`. If neither is given, it is estimated."""
    key: str | None = None
    """Fingerprint of the center's public key, in a run between machines."""

    @field_validator("key")
    @classmethod
    def _fingerprint(cls, key: str | None) -> str | None:
        return None if key is None else fingerprint_at("centers.key", key)


class ReferenceSpec(SourceSpec):
    """The reference center, which labels in the wanted space."""

    name: str = "reference"
    """Name of the reference center."""


class TestSpec(SourceSpec):
    """Test samples. There may be several tables."""

    __test__ = False  # not a test class, whatever pytest infers from its name

    name: str | None = Field(None, min_length=1)
    """Name of the test set in the results. If it is not set, it is `test` and a number."""
    space: str | None = None
    """Label space of its labels. If it is not set, it is the wanted one."""


Count = Annotated[int, Field(ge=1)]


class BenchmarkSpec(Section):
    """One labeled set, split into a federation."""

    data: SourceSpec
    """The labeled set, with the keys of a source."""
    test: SourceSpec | None = None
    """Its test part, for sources that have none of their own."""
    wanted: str
    """Label space of the reference center and of the model."""
    spaces: dict[str, Annotated[int, Field(ge=0)]]
    """Number of centers that label in each other space, as `{space = number}`."""
    split: Literal["iid", "natural", "non-iid", "long-tailed"] = "iid"
    """How frequent the classes are at a center: `"iid"`, all equally frequent; `"natural"`, as in the data;
    `"non-iid"`, two classes more frequent (see `gamma`); `"long-tailed"`, from frequent to rare (see
    `imbalance`)."""
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """For `split = "non-iid"`: a center's two main classes are 4 / (1 - gamma) times as frequent as the
    others."""
    # There is no default, so that an unset key is not written into a run's config and older runs can be
    # resumed.
    imbalance: Annotated[float, Field(ge=1)] | None = None
    """For `split = "long-tailed"`: the number of samples of a center's most frequent class,
    divided by that of its rarest class."""
    per_class: Count | None = None
    """Number of samples of each class at the reference center. Give this or `reference_share`."""
    reference_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each class that the reference center has. The other centers share the rest evenly, unless
    `samples` is given."""
    samples: Count | None = None
    """Number of samples at each center. If it is not set, the centers share all remaining samples."""
    test_per_class: Count | None = None
    """Number of samples of each class of `data` that are set aside as the test set before anything else. Use
    it to choose settings without touching a test part."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each class that is set aside as the test set, instead of `test_per_class`."""
    test_samples: Count | None = None
    """Largest number of test samples, balanced over the classes. Lower it to save time."""
    at_most: Annotated[dict[str, Count], AfterValidator(by_class_name)] = Field(default_factory=dict)
    """Classes to sample down, as `{class = number}`, after the test samples are taken."""
    augment_to: tuple[tuple[Count, Count], ...] = ()
    """Pairs `[below, to]`: a class with fewer than `below` training samples gets augmented
    copies until it has `to`. The first pair that fits is used."""
    subset: Count | None = None
    """Number of classes of the first other space to keep, with the wanted classes that occur with them. Use
    it for a small trial."""

    @property
    def sets_aside(self) -> str:
        """The key that sets test samples aside, or nothing."""
        return next((k for k in ("test_per_class", "test_share") if getattr(self, k) is not None), "")

    @model_validator(mode="after")
    def _fits_together(self) -> BenchmarkSpec:
        if self.per_class is None and self.reference_share is None:
            raise FedmtError(
                "benchmark.per_class: missing. Set the number of samples of each class at the reference "
                "center, or their share with benchmark.reference_share."
            )
        if self.per_class is not None and self.reference_share is not None:
            raise FedmtError(
                "benchmark.reference_share: benchmark.per_class also determines what the reference center "
                "has. Keep only one of the two."
            )
        if self.test_per_class is not None and self.test_share is not None:
            raise FedmtError(
                "benchmark.test_share: benchmark.test_per_class also determines how many samples are set "
                "aside. Keep only one of the two."
            )
        if self.test is not None and self.sets_aside:
            raise FedmtError(
                f"benchmark.{self.sets_aside}: benchmark.test also determines the test samples. Keep only "
                "one of the two."
            )
        if (self.imbalance is not None) != (self.split == "long-tailed"):
            raise FedmtError(
                "benchmark.imbalance: missing. Set how many times larger the most frequent class of a "
                "center is than its rarest, such as 50."
                if self.imbalance is None
                else "benchmark.imbalance: this is for split = 'long-tailed'. Leave it out, or set that "
                "split."
            )
        if self.split == "natural" and self.samples is not None:
            raise FedmtError(
                "benchmark.samples: with split = 'natural', the centers share all samples. Leave it out."
            )
        if self.augment_to and self.samples is not None:
            raise FedmtError(
                "benchmark.augment_to: copies would change the number of samples at a center, which "
                "benchmark.samples sets. Keep only one of the two."
            )
        last = 0
        for below, to in self.augment_to:
            if below <= last:
                raise FedmtError(
                    f"benchmark.augment_to: [{below}, {to}] comes after {last} and is never reached. Order "
                    "the pairs [below, to] by their first number."
                )
            if to < below:
                raise FedmtError(
                    f"benchmark.augment_to: [{below}, {to}] would fill a class of {below - 1} samples up to "
                    f"{to}; expected pairs [below, to] with `to` at least `below`."
                )
            last = below
        return self


class CalibrationSpec(Section):
    """Samples held out to calibrate the model's probabilities."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of each class of the reference center that is held out from training to fit a temperature on."""
    minimum: Annotated[int, Field(ge=2)] = 100
    """If fewer samples than this would be held out in total, none are, and nothing is calibrated."""
