"""What a config may say of the data: the tables `reference`, `centers`, `tests`, `benchmark`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedmt.core.errors import FedmtError
from fedmt.core.labels import class_name
from fedmt.core.section import ConfigPath, Section


def by_class_name(counts: dict[str, int]) -> dict[str, int]:
    """Under the names that a LabelSpace has, so that accents written another way do not hide a class."""
    return {class_name(name): count for name, count in counts.items()}


class SourceSpec(Section):
    """Where samples and labels lie.

    source: a name of `fedmt.data.sources`, or 'package.module:Name' of one's own. split: 'train' or 'test',
    for sources that have both. label_columns: the column of each label space, by its name. group_column: of
    what must stay together, such as a patient. site_column: of a test set, the site that each sample is from;
    the report shows the results of each. What the other keys mean is the source's to say.
    """

    source: str
    path: ConfigPath | None = None
    labels: ConfigPath | None = None
    split: Literal["train", "test"] | None = None
    image_column: str = "image"
    label_column: str = "label"
    root: ConfigPath | None = None
    # Without a default: what is not set is not written into a run's config, and runs from before resume.
    text_column: str | None = None
    label_columns: dict[str, str] | None = None
    group_column: str | None = None
    site_column: str | None = None


CorrespondenceSpec = ConfigPath | dict[str, str | dict[str, float]]
"""A CSV file, or a table `{wanted class = "class"}` or `{wanted class = {class = probability}}`."""


def fingerprint_at(where: str, key: str) -> str:
    """A fingerprint as it was given; refuses what is none."""
    if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", key):
        raise FedmtError(
            f"{where}: {key!r} given, expected the fingerprint of a public key, 'SHA256:' and 43 characters, "
            "as `ssh-keygen -lf berlin.pub` prints it."
        )
    return key


class CenterSpec(SourceSpec):
    """A center: a source, the space it labels in (none: it has no labels), and its correspondence.

    key: in a run between machines, the fingerprint of the public key that its node must have.
    """

    name: str = Field(min_length=1)
    space: str | None = None
    correspondence: CorrespondenceSpec | None = None
    key: str | None = None

    @field_validator("key")
    @classmethod
    def _fingerprint(cls, key: str | None) -> str | None:
        return None if key is None else fingerprint_at("centers.key", key)


class ReferenceSpec(SourceSpec):
    """The reference center; it labels in the wanted space."""

    name: str = "reference"


class TestSpec(SourceSpec):
    """Test samples, labeled in `space` (by default the wanted one). name: 'test' and a number otherwise."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    name: str | None = Field(None, min_length=1)
    space: str | None = None


Count = Annotated[int, Field(ge=1)]


class BenchmarkSpec(Section):
    """One labelled set split into a federation.

    data: the set; test: its test part (not needed for sources that have one).
    wanted: the space of the reference center. spaces: how many centers label in each other space.
    split: 'iid', every class equally often at every center; 'natural', as often as in the set; 'non-iid' with
    `gamma`; or 'long-tailed' with `imbalance`. samples: at each center (none: as many as there are).
    At the reference center, one of: per_class, samples of each class; reference_share, of each class.

    Set aside first, as the test set, one of: test_per_class, samples of each class of `data`; test_share, of
    each class.
    test_samples: the largest number of test samples, balanced over the classes.
    at_most: classes sampled down. augment_to: pairs (below, to); a class of fewer than `below` training
    samples is filled up to `to` with augmented copies, by the first pair that fits.
    subset: number of first classes of the first other space to use, with what occurs with them.
    """

    data: SourceSpec
    test: SourceSpec | None = None
    wanted: str
    spaces: dict[str, Annotated[int, Field(ge=0)]]
    split: Literal["iid", "natural", "non-iid", "long-tailed"] = "iid"
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.1
    # Without a default: what is not set is not written into a run's config, and runs from before resume.
    imbalance: Annotated[float, Field(ge=1)] | None = None
    per_class: Count | None = None
    reference_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    samples: Count | None = None
    test_per_class: Count | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    test_samples: Count | None = None
    at_most: Annotated[dict[str, Count], AfterValidator(by_class_name)] = Field(default_factory=dict)
    augment_to: tuple[tuple[Count, Count], ...] = ()
    subset: Count | None = None

    @property
    def sets_aside(self) -> str:
        """The key that sets test samples aside, or nothing."""
        return next((k for k in ("test_per_class", "test_share") if getattr(self, k) is not None), "")

    @model_validator(mode="after")
    def _fits_together(self) -> BenchmarkSpec:
        if self.per_class is None and self.reference_share is None:
            raise FedmtError(
                "benchmark.per_class: missing; say how many samples of each class the reference center has, "
                "or with benchmark.reference_share which share of them."
            )
        if self.per_class is not None and self.reference_share is not None:
            raise FedmtError(
                "benchmark.reference_share: benchmark.per_class also says what the reference center has; "
                "keep one of the two."
            )
        if self.test_per_class is not None and self.test_share is not None:
            raise FedmtError(
                "benchmark.test_share: benchmark.test_per_class also says how many samples are set aside; "
                "keep one of the two."
            )
        if self.test is not None and self.sets_aside:
            raise FedmtError(
                f"benchmark.{self.sets_aside}: benchmark.test also says what the test samples are; "
                "keep one of the two."
            )
        if (self.imbalance is not None) != (self.split == "long-tailed"):
            raise FedmtError(
                "benchmark.imbalance: missing; say how many times larger the most frequent class of a center "
                "is than its rarest, as in 50."
                if self.imbalance is None
                else "benchmark.imbalance: is for split = 'long-tailed'; leave it out, or set that split."
            )
        if self.split == "natural" and self.samples is not None:
            raise FedmtError(
                "benchmark.samples: with split = 'natural' the centers share all samples; leave it out."
            )
        if self.augment_to and self.samples is not None:
            raise FedmtError(
                "benchmark.augment_to: copies would change the number of samples at a center, which "
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
                    f"benchmark.augment_to: [{below}, {to}] would fill a class of {below - 1} samples up to "
                    f"{to}; expected pairs [below, to] with `to` at least `below`."
                )
            last = below
        return self


class CalibrationSpec(Section):
    """share: of each class of the reference center, held out from training to fit a temperature on.

    minimum: with fewer samples than this held out in all, none are, and nothing is calibrated.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    minimum: Annotated[int, Field(ge=2)] = 100
