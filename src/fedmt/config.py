"""The config: a TOML file, checked whole before anything is loaded or written.

Every error names the file, the line where it can be found, and the key; an unknown key comes with
the nearest known one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch
from pydantic import Field, PrivateAttr, TypeAdapter, ValidationError

from fedmt.aggregation import STRATEGIES, Strategy
from fedmt.augment import Augmentation
from fedmt.backbones import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Classifier,
    build,
    pixel_statistics,
)
from fedmt.backbones.heads import add_heads
from fedmt.config_errors import Origin, explain
from fedmt.data.benchmark import load_benchmark
from fedmt.data.center import Federation
from fedmt.data.holding import hold_out
from fedmt.data.loading import Vocabulary, load_federation, outline
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
from fedmt.errors import FedmtError, listed, nearest
from fedmt.labels import LabelSpace
from fedmt.methods import METHODS, PRESETS, Method, Training
from fedmt.registry import Registry, option_names, own_tables
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

    backbone: str = "resnet18"
    weights: ConfigPath | None = None
    max_pool: bool | None = None
    normalise: Literal["reference", "imagenet"] | None = None


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

    seed: int = Field(0, ge=0, lt=2**63)
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    graphs: bool | None = None
    preset: str | None = None
    checkpoint_every: int = Field(1, ge=1)
    method: dict[str, Any] = Field(default_factory=dict)
    aggregation: dict[str, Any] = Field(default_factory=dict)
    training: Training = Training()
    augmentation: Augmentation = Augmentation()
    model: ModelSpec = ModelSpec()
    images: ImageSpec = ImageSpec()
    calibration: CalibrationSpec | None = None
    spaces: dict[str, list[str]] = Field(default_factory=dict)
    correspondences: dict[str, CorrespondenceSpec] = Field(default_factory=dict)
    benchmark: BenchmarkSpec | None = None
    wanted: str | None = None
    reference: ReferenceSpec | None = None
    centers: list[CenterSpec] = Field(default_factory=list)
    tests: list[TestSpec] = Field(default_factory=list)
    deployment: DeploymentSpec | None = None
    tracking: TrackingSpec | None = None

    _where: str = PrivateAttr("config")  # its file, for errors that come up while the data is read

    def build_method(self) -> Method:
        """The method with its options, the training and the augmentation."""
        method: Method = self._build_named("method")
        return method

    def build_strategy(self) -> Strategy:
        """The aggregation strategy with its options."""
        strategy: Strategy = self._build_named("aggregation")
        return strategy

    def _build_named(self, table: str) -> Any:
        """What a table chooses by its name, with its options; some have a table of their own."""
        options = dict(getattr(self, table))
        entry = NAMED[table][1].find(options.pop("name"), f"{table}.name")
        options |= {name: getattr(self, name) for name in own_tables(entry)}
        return TypeAdapter(entry).validate_python(options)

    def build_federation(self, at_hand: bool = True) -> tuple[Federation, tuple[str, ...]]:
        """The federation, and notes for the user.

        at_hand: False where the centers' data are on other machines; a benchmark, which is one set, is read
        all the same and forgotten.
        """
        spaces = {name: LabelSpace(name, classes) for name, classes in self.spaces.items()}
        vocabulary = Vocabulary(spaces, self.correspondences, self._where)
        if self.benchmark is not None:
            federation, notes = load_benchmark(
                self.benchmark, self.images, vocabulary, self.seed, self.augmentation.flip
            )
            if not at_hand:
                shape = federation.image_shape
                known = [outline(c.name, shape, c.space, c.correspondence) for c in federation.centers]
                federation = replace(federation, centers=tuple(known))
        else:
            assert self.wanted is not None and self.reference is not None
            federation, notes = load_federation(
                self.wanted, self.reference, self.centers, self.tests, self.images, vocabulary, at_hand
            )
        if self.calibration is None:
            return federation, notes
        federation, note = hold_out(federation, self.calibration, self.seed)
        return federation, (*notes, note)

    def starting_model(self, federation: Federation) -> Classifier:
        """The model at a run's starting weights, which follow from the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build_model(federation)

    def build_model(self, federation: Federation) -> Classifier:
        """The K-class model at its starting weights."""
        channels = federation.image_shape[0]
        spec = self.model
        if (spec.normalise or ("imagenet" if spec.weights else "reference")) == "imagenet":
            mean, std = list(IMAGENET_MEAN), list(IMAGENET_STD)
            if channels == 1:
                mean, std = [sum(mean) / 3], [sum(std) / 3]
        else:
            mean, std = pixel_statistics(federation.reference.images)
        sizes = [len(space) for space in federation.spaces]
        model = self.build_network(federation.image_shape, sizes, spec.weights, mean, std)
        with torch.no_grad():
            found = tuple(model.eval()(federation.reference.images[:2].float() / 255).shape)
        expected = (min(2, len(federation.reference)), len(federation.wanted))
        if found != expected:
            raise FedmtError(
                f"model.backbone: '{spec.backbone}' gives scores of shape {found} for {expected[0]} images, "
                f"expected {expected}: one for each class of '{federation.wanted.name}'."
            )
        return model

    def build_network(
        self,
        image_shape: tuple[int, int, int],
        sizes: Sequence[int],
        weights: Path | None = None,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
    ) -> Classifier:
        """The network for label spaces of `sizes`, the wanted one first.

        weights, mean, std: what it starts from; a center, which receives all of it, needs none of them.
        """
        channels, height, width = image_shape
        spec = self.model
        backbone = build(spec.backbone, sizes[0], channels, (height, width), weights, spec.max_pool)
        model = Classifier(backbone, mean or [0.0] * channels, std or [1.0] * channels)
        if METHODS.find(self.method["name"], "method.name").heads:
            add_heads(model, sizes[0], sizes[1:])
        return model


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads a TOML config; `overrides` are `key=value` pairs as `--set` takes them."""
    path = Path(path)
    raw, text = read_toml(path)
    if "rows" in raw and "columns" in raw:
        raise FedmtError(f"{path} is an experiment, not a federation: `fedmt reproduce {path}` runs it.")
    keys = tuple(override(raw, item) for item in overrides or [])
    return parse_config(raw, Origin(path, text, keys))


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """A TOML file as dictionaries and as text; what cannot be read is a FedmtError."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors may begin it with a mark
    except FileNotFoundError:
        others = [str(p) for p in sorted(path.parent.glob("*.toml")) if p.name != "pyproject.toml"]
        hint = nearest(str(path), others) or (f" In that folder: {listed(others)}." if others else "")
        first = "" if hint else " `fedmt init` writes a first one from your data."
        raise FedmtError(f"{path}: there is no such file.{hint}{first}") from None
    except IsADirectoryError:
        inside = [str(p) for p in sorted(path.glob("*.toml"))]
        hint = f"such as {inside[0]}" if inside else "which `fedmt init` writes from your data"
        raise FedmtError(f"{path} is a folder; name the TOML file, {hint}.") from None
    except OSError as error:
        raise FedmtError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise FedmtError(f"{path}: not text in UTF-8, so not a TOML file.") from None
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise FedmtError(f"{path}: not valid TOML: {error}.") from None


def parse_config(raw: dict[str, Any], origin: Origin | None = None) -> Config:
    """Checks a config given as nested dictionaries."""
    origin = origin or Origin()
    raw = _with_preset(raw, origin)
    for table, (default, _) in NAMED.items():
        if isinstance(raw.get(table, {}), dict):
            raw = {**raw, table: {"name": default, **raw.get(table, {})}}
    try:
        folder = origin.path.parent if origin.path is not None else None
        config = Config.model_validate(raw, context={"folder": folder})
        if origin.path is not None:
            config._where = str(origin.path)
        for table in NAMED:
            _check_options(table, config, origin)
        config.build_method().check_strategy(config.build_strategy())
    except ValidationError as error:
        raise FedmtError(explain(error, Config, (), origin)) from None
    except FedmtError as error:
        # Raised by an options class, which knows its key ("training.rounds: …") but not the file.
        key = str(error).split(":", 1)[0]
        if not re.fullmatch(r"[\w.]+", key):
            raise
        raise FedmtError(f"{origin.place(*key.split('.'))}{error}") from None
    if config.benchmark is None:
        needed = [k for k in ("wanted", "reference", "centers") if not getattr(config, k)]
        if needed:
            raise FedmtError(
                f"{origin.place()}missing {listed(needed)}: a config has either [benchmark], or wanted, "
                "[reference] and [[centers]]."
            )
    elif config.wanted or config.reference or config.centers or config.tests:
        raise FedmtError(f"{origin.place()}both [benchmark] and a federation of its own are given; keep one.")
    elif config.calibration is not None and config.benchmark.augment_to:
        raise FedmtError(
            f"{origin.place('calibration')}calibration: together with benchmark.augment_to, augmented copies "
            "of the images that are held out would be trained on; keep one of the two."
        )
    return config


def dump_config(config: Config) -> str:
    """The resolved config as TOML: every default spelled out, so that it runs again as it ran."""
    plain = _without_none(config.model_dump(mode="json"))
    plain.pop("tracking", None)  # who is told of a run, which may change when it goes on
    # How long to wait, and for how many, may change when a run goes on; what travels may not.
    wire = plain.pop("deployment", {}).get("wire", "float32")
    if wire != "float32":
        plain["deployment"] = {"wire": wire}
    for table, built in (("method", config.build_method()), ("aggregation", config.build_strategy())):
        options = {key: getattr(built, key) for key in option_names(type(built))}
        plain[table] = {"name": plain[table]["name"], **options}
    return tomli_w.dumps(plain)


def _check_options(table: str, config: Config, origin: Origin) -> None:
    """The name must be one that is found, every key one of its options, and every value allowed."""
    options, registry = getattr(config, table), NAMED[table][1]
    entry = registry.find(options.get("name"), f"{table}.name")
    known, elsewhere = option_names(entry), {*own_tables(entry), *own_tables(Method)}
    for key in options:
        if key in elsewhere:
            raise FedmtError(
                f"{origin.place(table, key)}{table}.{key}: goes into a table of its own, [{key}]."
            )
        if key != "name" and key not in known:
            hint = nearest(key, known) or (
                f" {registry.word.capitalize()} '{options['name']}' has no options."
                if not known
                else f" Known: {listed(known, 20)}."
            )
            raise FedmtError(f"{origin.place(table, key)}unknown key '{table}.{key}'.{hint}")
    try:
        config._build_named(table)
    except ValidationError as error:
        raise FedmtError(explain(error, Config, (table,), origin)) from None


def _with_preset(raw: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """The preset's values for the config's method, below the config's own."""
    name = raw.get("preset")
    if name is None:
        return raw
    if not isinstance(name, str) or name not in PRESETS:
        raise FedmtError(
            f"{origin.place('preset')}preset: no preset {name!r}.{nearest(str(name), PRESETS)} "
            f"Known: {listed(PRESETS)}."
        )
    merged = dict(raw)
    for section, values in PRESETS[name].get(_name(raw, "method"), {}).items():
        own = raw.get(section, {})
        if not isinstance(own, dict):
            continue  # an error that validation will name
        if section == "aggregation" and own.get("name", values["name"]) != values["name"]:
            continue  # the options of one strategy are not another's
        merged[section] = {**values, **own}
    return merged


def _name(raw: dict[str, Any], table: str) -> str:
    own = raw.get(table, {})
    return str(own.get("name", NAMED[table][0])) if isinstance(own, dict) else ""


def override(raw: dict[str, Any], item: str) -> tuple[str, ...]:
    """Applies one `a.b=value` and returns its key; a value that is not TOML is plain text."""
    key, equals, value = item.partition("=")
    if not equals or not key.strip():
        raise FedmtError(f"--set {item}: expected key=value, as in --set training.rounds=20.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    path = tuple(key.strip().split("."))
    for table in path[:-1]:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise FedmtError(f"--set {item}: '{table}' is not a table.")
    raw[path[-1]] = parsed
    return path


def _without_none(value: Any) -> Any:
    """TOML has no null: an option that is not set is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
