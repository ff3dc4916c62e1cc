"""What a config may say: its tables and their keys."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr

from fedmt.aggregation import STRATEGIES
from fedmt.augment import Augmentation
from fedmt.config.traveling import Stays, Travels, check_marks
from fedmt.data.specs import (
    BenchmarkSpec,
    CalibrationSpec,
    CenterSpec,
    ConfigPath,
    CorrespondenceSpec,
    ImageSpec,
    ReferenceSpec,
    Section,
    TestSpec,
)
from fedmt.methods import METHODS, Training
from fedmt.registry import Registry
from fedmt.tracking.spec import TrackingSpec

NAMED: dict[str, tuple[str, Registry[Any]]] = {
    "method": ("fedmt", METHODS),
    "aggregation": ("fedavgm", STRATEGIES),
}
"""Tables that choose one thing by its `name` and give its options: the default, and all there are."""


class ModelSpec(Section):
    """backbone: a name or 'package.module:callable'. weights: a torchvision weight file to start from.

    max_pool: the first max-pool of a ResNet (none: skipped for images under 64 pixels).
    normalise: pixel statistics, of the 'reference' center's images or of 'imagenet' (none: 'imagenet'
    with a weight file, else 'reference').
    """

    backbone: Travels[str] = "resnet18"
    weights: Stays[ConfigPath | None] = None
    max_pool: Travels[bool | None] = None
    normalise: Stays[Literal["reference", "imagenet"] | None] = None


class DeploymentSpec(Section):
    """Of a run over Flower, whose centers are on other machines; the local engine reads none of it.

    min_centers: a round with fewer answers stops the run. wait: seconds for the centers to connect before the
    first round. timeout: seconds for an answer; a later one is left out of its round. wire: how weight
    matrices travel; 'bfloat16' is half the bytes, and not the same to the bit.
    """

    min_centers: int = Field(1, ge=1)
    wait: float = Field(600.0, gt=0)
    timeout: float = Field(3600.0, gt=0)
    wire: Literal["float32", "bfloat16"] = "float32"


class Config(Section):
    """A whole run. Either `benchmark`, or `wanted`, `reference`, `centers` and `tests`."""

    seed: Travels[int] = Field(0, ge=0, lt=2**63)
    device: Stays[str] = "auto"
    precision: Travels[Literal["auto", "float32", "bfloat16"]] = "auto"
    graphs: Stays[bool | None] = None
    preset: Stays[str | None] = None
    checkpoint_every: Stays[int] = Field(1, ge=1)
    method: Travels[dict[str, Any]] = Field(default_factory=dict)
    aggregation: Travels[dict[str, Any]] = Field(default_factory=dict)
    training: Travels[Training] = Training()
    augmentation: Travels[Augmentation] = Augmentation()
    model: Travels[ModelSpec] = ModelSpec()
    images: Stays[ImageSpec] = ImageSpec()
    calibration: Stays[CalibrationSpec | None] = None
    spaces: Stays[dict[str, list[str]]] = Field(default_factory=dict)
    correspondences: Stays[dict[str, CorrespondenceSpec]] = Field(default_factory=dict)
    benchmark: Stays[BenchmarkSpec | None] = None
    wanted: Stays[str | None] = None
    reference: Stays[ReferenceSpec | None] = None
    centers: Stays[list[CenterSpec]] = Field(default_factory=list)
    tests: Stays[list[TestSpec]] = Field(default_factory=list)
    deployment: Stays[DeploymentSpec | None] = None
    tracking: Stays[TrackingSpec | None] = None

    _where: str = PrivateAttr("config")  # its file, for errors that come up while the data is read


check_marks(Config)
