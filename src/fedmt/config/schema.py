"""What a config may say: its tables and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field, PrivateAttr, create_model, model_validator

from fedmt.aggregation import STRATEGIES
from fedmt.backbones.given import PREFIX
from fedmt.config.traveling import check_marks
from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry
from fedmt.core.section import ConfigPath, Section, Stays, Travels
from fedmt.data.specs import (
    BenchmarkSpec,
    CalibrationSpec,
    CenterSpec,
    CorrespondenceSpec,
    ReferenceSpec,
    TestSpec,
)
from fedmt.inputs import DEFAULT_INPUT, INPUTS, Input, Vectors, Views
from fedmt.methods import METHODS, Training
from fedmt.privacy import PrivacySpec
from fedmt.tracking.spec import TrackingSpec

NAMED: dict[str, tuple[str, Registry[Any]]] = {
    "method": ("fedmt", METHODS),
    "aggregation": ("fedavgm", STRATEGIES),
}
"""Tables that choose one thing by its `name` and give its options: the default, and all there are."""


class ModelSpec(Section):
    """backbone: a name, 'timm:NAME' or 'package.module:callable'. weights: a weight file to start from.

    max_pool: the first max-pool of a ResNet (none: skipped for small images).
    normalise: by the statistics of the 'reference' center's samples or of 'imagenet', or by 'none' (not set:
    'imagenet' with a weight file, else 'reference'). For a timm network, 'imagenet' means what timm says of
    its weights.
    freeze: 'backbone', or true, which is the same: everything below the last layer stays at its starting
    weights. The features of all samples are computed once, and a head is trained on them.
    head: what is trained on the features of a frozen backbone, a backbone for vectors (not set: 'linear'). Of
    an nn.Module that is given in Python, whether its outputs are features, to which a linear head is added
    (not set: where they are not as many as the wanted classes).
    """

    backbone: Travels[str] = DEFAULT_INPUT.backbone
    weights: Stays[ConfigPath | None] = None
    max_pool: Travels[bool | None] = None
    normalise: Stays[Literal["reference", "imagenet", "none"] | None] = None
    freeze: Travels[Literal["backbone"] | None] = None
    head: Travels[bool | str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _frozen(cls, raw: Any) -> Any:
        """One spelling of `freeze`, so that a run folder keeps one; and the head that belongs to it."""
        if not isinstance(raw, dict):
            return raw
        if raw.get("freeze") not in (None, True, False, "backbone"):
            raise FedmtError(
                f"model.freeze: {raw['freeze']!r} given, expected true, false or 'backbone', which is the "
                "same as true."
            )
        if isinstance(raw.get("freeze"), bool):
            raw = {**raw, "freeze": "backbone" if raw["freeze"] else None}
        if raw.get("freeze") is not None:
            if str(raw.get("backbone", "")).startswith(PREFIX):
                raise FedmtError(
                    "model.freeze: is for networks that fedmt builds; of an nn.Module of your own, compute "
                    "the features yourself and train on them as vectors."
                )
            return {**raw, "head": raw.get("head") or "linear"}
        if isinstance(raw.get("head"), str):
            raise FedmtError(
                "model.head: is for the features of a frozen backbone; set model.freeze = true, or leave it "
                "out."
            )
        return raw


class DeploymentSpec(Section):
    """Of a run over Flower, whose centers are on other machines. Of it, the local engine reads only what
    concerns secure aggregation.

    min_centers: a round with fewer answers stops the run. wait: seconds for the centers to connect before the
    first round. timeout: seconds for an answer; a later one is left out of its round. wire: how weight
    matrices travel; 'bfloat16' is half the bytes, and not the same bit for bit.
    insecure: whether any node may use any center's name. Otherwise every center has a key.
    secure_aggregation: the coordinator learns the sum of the updates alone. threshold: the fewest centers in
    a sum (not set: two thirds of them). max_samples: no center has more. A center's weight in a sum is a
    share of it, so a value that is far too large costs precision.
    """

    min_centers: int = Field(1, ge=1)
    wait: float = Field(600.0, gt=0)
    timeout: float = Field(3600.0, gt=0)
    wire: Literal["float32", "bfloat16"] = "float32"
    insecure: bool = False
    secure_aggregation: bool = False
    threshold: int | None = Field(None, ge=2)
    max_samples: int = Field(65_536, ge=1, le=2**24)


class Config(Section):
    """A whole run. Either `benchmark`, or `wanted`, `reference`, `centers` and `tests`.

    metrics: those of the user's own, next to the built-in ones. keep_checkpoints: how many of the last ones
    stay on disk, so that a run can continue from an earlier round. attack: bad centers that a benchmark
    simulates.
    The keys of [augmentation], and those of the table that has the input's name, such as [images], follow
    from the input: a config is read by its `config_class`.
    """

    input: Travels[str] = DEFAULT_INPUT.name
    seed: Travels[int] = Field(0, ge=0, lt=2**63)
    device: Stays[str] = "auto"
    precision: Travels[Literal["auto", "float32", "bfloat16"]] = "auto"
    graphs: Stays[bool | None] = None
    prefetch: Stays[bool | None] = None
    preset: Stays[str | None] = None
    metrics: Stays[list[str]] = Field(default_factory=list)
    checkpoint_every: Stays[int] = Field(1, ge=1)
    keep_checkpoints: Stays[int] = Field(2, ge=2)
    method: Travels[dict[str, Any]] = Field(default_factory=dict)
    aggregation: Travels[dict[str, Any]] = Field(default_factory=dict)
    training: Travels[Training] = Training()
    augmentation: Travels[Views]
    # Of a simulation. Between machines it is each center's own, and here what is asked of all of them.
    privacy: Stays[PrivacySpec | None] = None
    model: Travels[ModelSpec] = ModelSpec()
    calibration: Stays[CalibrationSpec | None] = None
    spaces: Stays[dict[str, list[str]]] = Field(default_factory=dict)
    correspondences: Stays[dict[str, CorrespondenceSpec]] = Field(default_factory=dict)
    benchmark: Stays[BenchmarkSpec | None] = None
    wanted: Stays[str | None] = None
    reference: Stays[ReferenceSpec | None] = None
    centers: Stays[list[CenterSpec]] = Field(default_factory=list)
    tests: Stays[list[TestSpec]] = Field(default_factory=list)
    attack: Stays[dict[str, Any] | None] = None
    deployment: Stays[DeploymentSpec | None] = None
    tracking: Stays[TrackingSpec | None] = None

    _where: str = PrivateAttr("config")  # its file, for errors that come up while the data is read

    @model_validator(mode="before")
    @classmethod
    def _with_backbone(cls, raw: Any) -> Any:
        """The network that belongs to the input, where the config names none."""
        if not isinstance(raw, dict) or not isinstance(raw.get("model", {}), dict):
            return raw
        usual = find_input(raw.get("input", DEFAULT_INPUT.name)).backbone
        return {**raw, "model": {"backbone": usual, **raw.get("model", {})}}

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is made when it is read, so pickle finds it by the input."""
        return _restored, (self.input, self.model.freeze, self.__getstate__())

    @property
    def sums_only(self) -> bool:
        """Whether the coordinator is to learn nothing but sums."""
        return self.deployment is not None and self.deployment.secure_aggregation

    @property
    def options(self) -> Section:
        """The table of the input."""
        options: Section = getattr(self, find_input(self.input).name)
        return options


def find_input(name: object) -> type[Input]:
    return INPUTS.find(name, "input")


def config_class(raw: Mapping[str, Any]) -> type[Config]:
    """The schema that a config given as nested dictionaries is checked by."""
    model = raw.get("model", {})
    frozen = isinstance(model, Mapping) and bool(model.get("freeze"))
    return _config_class(find_input(raw.get("input", DEFAULT_INPUT.name)), frozen)


def _restored(input: str, freeze: str | None, state: dict[Any, Any]) -> Config:
    schema = config_class({"input": input, "model": {"freeze": freeze}})
    config = schema.__new__(schema)
    config.__setstate__(state)
    return config


@cache
def _config_class(kind: type[Input], frozen: bool) -> type[Config]:
    """frozen: the network is, so what is trained on, and seen in views, are vectors."""
    if not kind.name.isidentifier() or kind.name in Config.model_fields:
        raise FedmtError(
            f"input: {kind.__name__}.name is '{kind.name}'; it names a table of the config, so it must be an "
            "identifier that no other table has."
        )
    views = Vectors.views if frozen else kind.views
    own: dict[str, Any] = {
        "augmentation": (Travels[views], views()),  # type: ignore[misc,valid-type]
        kind.name: (Stays[kind.options], kind.options()),  # type: ignore[misc,name-defined]
    }
    schema: type[Config] = create_model("Config", __base__=Config, **own)
    check_marks(schema)
    return schema


check_marks(Config)
