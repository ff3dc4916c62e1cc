"""What a config may contain: its tables and their keys."""

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
"""Tables that choose one entry by its `name` and give its options: the default, and all known entries."""


class ModelSpec(Section):
    """The network."""

    backbone: Travels[str] = DEFAULT_INPUT.backbone
    """Network to train: a name, `"timm:NAME"`, or your own as `"package.module:callable"`."""
    weights: Stays[ConfigPath | None] = None
    """Local weight file to start from, `.safetensors` or `.pth`, with the parameter names of torchvision, or
    of timm for its networks. Start from pretrained weights if there are few samples."""
    max_pool: Travels[bool | None] = None
    """Whether a ResNet has its first max-pool. If it is not set, it is skipped for small images."""
    normalize: Stays[Literal["reference", "imagenet", "none"] | None] = None
    """Statistics to normalize samples with: those of the reference center, of ImageNet (for timm networks,
    those of their weights), or none. If it is not set, it is `"imagenet"` with a weight file and
    `"reference"` without one."""
    freeze: Travels[Literal["backbone"] | None] = None
    """Set it to true (or `"backbone"`) to keep everything below the last layer at its starting weights. The
    features of all samples are computed once and a head is trained on them, which is fast and suits few
    samples."""
    head: Travels[bool | str | None] = None
    """Backbone for vectors that is trained on the features of a frozen network; the default is `"linear"`.
    For an `nn.Module` given in Python, whether its outputs are features to which a linear head is added."""

    @model_validator(mode="before")
    @classmethod
    def _frozen(cls, raw: Any) -> Any:
        """Normalizes the spelling of `freeze`, so that a run folder always has the same one, and sets the
        head that belongs to it."""
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
                    "model.freeze: this is for networks that fedmt builds. For an nn.Module of your own, "
                    "compute the features yourself and train on them as vectors."
                )
            return {**raw, "head": raw.get("head") or "linear"}
        if isinstance(raw.get("head"), str):
            raise FedmtError(
                "model.head: this is for the features of a frozen backbone. Set model.freeze = true, or "
                "leave it out."
            )
        return raw


class DeploymentSpec(Section):
    """A run between machines, over Flower. A local run reads only what concerns secure aggregation."""

    min_centers: int = Field(1, ge=1)
    """Smallest number of centers that must answer in a round. With fewer, the run stops."""
    wait: float = Field(600.0, gt=0)
    """Seconds to wait for the centers to connect before the first round."""
    timeout: float = Field(3600.0, gt=0)
    """Seconds to wait for an answer. A later answer is left out of its round."""
    wire: Literal["float32", "bfloat16"] = "float32"
    """Number format in which weights travel. `"bfloat16"` halves the bytes, and the results are no longer
    bit-identical to a local run."""
    insecure: bool = False
    """Whether any node may use any center's name. Otherwise every center has a key. Use it only for trials on
    one machine."""
    secure_aggregation: bool = False
    """Whether the coordinator learns only the sum of the updates."""
    threshold: int | None = Field(None, ge=2)
    """Smallest number of centers that such a sum may contain. If it is not set, it is two thirds of all
    centers, rounded up, and at least the smallest number that is safe."""
    max_samples: int = Field(65_536, ge=1, le=2**24)
    """Upper bound on the number of samples of any center. With secure aggregation, a center's weight is
    expressed as a share of this bound, so a value that is far too large costs precision."""


class Config(Section):
    """A whole run. Either `benchmark`, or `wanted`, `reference`, `centers` and `tests`.

    The keys of [augmentation], and those of the table that has the input's name, such as [images], follow
    from the input: a config is read by its `config_class`.
    """

    input: Travels[str] = DEFAULT_INPUT.name
    """What a sample is. Your own is `"package.module:Name"`."""
    seed: Travels[int] = Field(0, ge=0, lt=2**63)
    """Number that determines everything random in a run. Run several seeds before you trust a difference."""
    device: Stays[str] = "auto"
    """Where to train. `"cpu"` is the CPU, `"cuda"` is every visible GPU, and `"cuda:1"` is one of them.
    `"auto"` is `"cuda"` if there is a GPU."""
    precision: Travels[Literal["auto", "float32", "bfloat16"]] = "auto"
    """Number format of the forward and backward passes. `"auto"` is bfloat16 on CUDA and float32
    elsewhere."""
    graphs: Stays[bool | None] = None
    """Whether centers train together in CUDA graphs. If it is not set, they do on CUDA. Set it to false to
    train one center after the other, step by step, for debugging."""
    compile: Stays[bool] = False
    """Whether `torch.compile` prepares the network, where centers train in CUDA graphs. It takes 20 to 40 s
    at the start. On ResNet18 a round became 3% shorter, so try it only in runs of hours."""
    prefetch: Stays[bool | None] = None
    """Whether samples stay in host memory and are sent to the GPU ahead of their steps. If it is not set,
    they stay there only if they would not fit on the GPU."""
    preset: Stays[str | None] = None
    """Named settings for whole tables. `"paper"` gives the method the options that the paper prints. Keys
    that you set yourself take precedence."""
    metrics: Stays[list[str]] = Field(default_factory=list)
    """Your own metrics, measured in addition to the built-in ones, as `["package.module:NAME"]`."""
    checkpoint_every: Stays[int] = Field(1, ge=1)
    """Rounds between two checkpoints."""
    keep_checkpoints: Stays[int] = Field(2, ge=2)
    """Number of most recent checkpoints to keep. Raise it if you want to return to an earlier round."""
    method: Travels[dict[str, Any]] = Field(default_factory=dict)
    """The method and its options."""
    aggregation: Travels[dict[str, Any]] = Field(default_factory=dict)
    """The aggregation strategy and its options."""
    training: Travels[Training] = Training()
    """How centers train."""
    augmentation: Travels[Views]
    """What the weak and strong views do."""
    # This applies to a simulation. Between machines, each center has its own table, and this one is a
    # requirement for all of them.
    privacy: Stays[PrivacySpec | None] = None
    """Differential privacy of each center's records, in a simulation. In a run between machines it is a
    condition that every center must meet."""
    model: Travels[ModelSpec] = ModelSpec()
    """The network."""
    calibration: Stays[CalibrationSpec | None] = None
    """Held-out samples for calibration."""
    spaces: Stays[dict[str, list[str]]] = Field(default_factory=dict)
    """Label spaces by name, each a list of class names."""
    correspondences: Stays[dict[str, CorrespondenceSpec]] = Field(default_factory=dict)
    """Known correspondences by label space, each a CSV file or a table."""
    benchmark: Stays[BenchmarkSpec | None] = None
    """One labeled set, split into a federation."""
    wanted: Stays[str | None] = None
    """Label space that the model predicts in."""
    reference: Stays[ReferenceSpec | None] = None
    """The reference center."""
    centers: Stays[list[CenterSpec]] = Field(default_factory=list)
    """The other centers."""
    tests: Stays[list[TestSpec]] = Field(default_factory=list)
    """The test sets."""
    attack: Stays[dict[str, Any] | None] = None
    """Bad centers that a benchmark simulates."""
    deployment: Stays[DeploymentSpec | None] = None
    """A run between machines."""
    tracking: Stays[TrackingSpec | None] = None
    """Trackers that the run reports to."""

    _where: str = PrivateAttr("config")  # its file, for errors that are found while the data is read

    @model_validator(mode="before")
    @classmethod
    def _with_backbone(cls, raw: Any) -> Any:
        """The default network of the input, if the config names none."""
        if not isinstance(raw, dict) or not isinstance(raw.get("model", {}), dict):
            return raw
        usual = find_input(raw.get("input", DEFAULT_INPUT.name)).backbone
        return {**raw, "model": {"backbone": usual, **raw.get("model", {})}}

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is made when a config is read, so pickle finds it through the input."""
        return _restored, (self.input, self.model.freeze, self.__getstate__())

    @property
    def sums_only(self) -> bool:
        """Whether the coordinator may learn nothing but sums."""
        return self.deployment is not None and self.deployment.secure_aggregation

    @property
    def options(self) -> Section:
        """The config's table for the input."""
        options: Section = getattr(self, find_input(self.input).name)
        return options


def find_input(name: object) -> type[Input]:
    return INPUTS.find(name, "input")


def sees_vectors(kind: type[Input]) -> bool:
    """Whether a network sees a sample of this input as a vector of features."""
    return issubclass(kind, Vectors) or kind.seen_as == Vectors.name


def config_class(raw: Mapping[str, Any]) -> type[Config]:
    """The schema that checks a config given as nested dictionaries."""
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
    """frozen: whether the network is frozen. The model then trains on vectors, and views are views of
    vectors."""
    if not kind.name.isidentifier() or kind.name in Config.model_fields:
        raise FedmtError(
            f"input: {kind.__name__}.name is '{kind.name}'. It names a table of the config, so it must be an "
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
