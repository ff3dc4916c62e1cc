"""The config: a TOML file, checked whole before anything is loaded or written.

Every error names the file, the line where it can be found, and the key; an unknown key comes with
the nearest known one.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from fedmt.augment import Augmentation
from fedmt.backbones import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Classifier,
    build,
    pixel_statistics,
)
from fedmt.data.center import Federation
from fedmt.data.loading import (
    BenchmarkSpec,
    CenterSpec,
    ConfigPath,
    CorrespondenceSpec,
    ImageSpec,
    ReferenceSpec,
    Section,
    TestSpec,
    Vocabulary,
    load_benchmark,
    load_federation,
)
from fedmt.errors import FedmtError, listed, nearest
from fedmt.labels import LabelSpace
from fedmt.methods import METHODS, PRESETS, Method, Training


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


class Config(Section):
    """A whole run. Either `benchmark`, or `wanted`, `reference`, `centers` and `tests`."""

    seed: int = Field(0, ge=0)
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    preset: str | None = None
    checkpoint_every: int = Field(1, ge=1)
    method: dict[str, Any] = Field(default_factory=dict)
    training: Training = Training()
    augmentation: Augmentation = Augmentation()
    model: ModelSpec = ModelSpec()
    images: ImageSpec = ImageSpec()
    spaces: dict[str, list[str]] = Field(default_factory=dict)
    correspondences: dict[str, CorrespondenceSpec] = Field(default_factory=dict)
    benchmark: BenchmarkSpec | None = None
    wanted: str | None = None
    reference: ReferenceSpec | None = None
    centers: list[CenterSpec] = Field(default_factory=list)
    tests: list[TestSpec] = Field(default_factory=list)

    def build_method(self) -> Method:
        """The method with its options, the training and the augmentation."""
        options = {k: v for k, v in self.method.items() if k != "name"}
        cls = METHODS[self.method["name"]]
        options |= {"training": self.training, "augmentation": self.augmentation}
        return TypeAdapter(cls).validate_python(options)

    def build_federation(self) -> tuple[Federation, tuple[str, ...]]:
        """The federation, and notes for the user."""
        spaces = {name: LabelSpace(name, classes) for name, classes in self.spaces.items()}
        vocabulary = Vocabulary(spaces, self.correspondences, "config")
        if self.benchmark is not None:
            return load_benchmark(self.benchmark, self.images, vocabulary, self.seed)
        assert self.wanted is not None and self.reference is not None
        federation = load_federation(
            self.wanted, self.reference, self.centers, self.tests, self.images, vocabulary
        )
        return federation, ()

    def build_model(self, federation: Federation) -> Classifier:
        """The K-class model at its starting weights."""
        channels, height, width = federation.image_shape
        spec = self.model
        backbone = build(
            spec.backbone, len(federation.wanted), channels, (height, width), spec.weights, spec.max_pool
        )
        if (spec.normalise or ("imagenet" if spec.weights else "reference")) == "imagenet":
            mean, std = list(IMAGENET_MEAN), list(IMAGENET_STD)
            if channels == 1:
                mean, std = [sum(mean) / 3], [sum(std) / 3]
        else:
            mean, std = pixel_statistics(federation.reference.images)
        return Classifier(backbone, mean, std)


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads a TOML config; `overrides` are `key=value` pairs as `--set` takes them."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedmtError(f"{path}: cannot read the config ({error}).") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedmtError(f"{path}: not valid TOML: {error}.") from None
    for item in overrides or []:
        _override(raw, item)
    return parse_config(raw, path, text)


def parse_config(raw: dict[str, Any], path: Path | None = None, text: str = "") -> Config:
    """Checks a config given as nested dictionaries; `path` and `text` are for the errors."""
    raw = _with_preset(raw, path, text)
    if isinstance(raw.get("method", {}), dict):
        raw = {**raw, "method": {"name": "fedmt", **raw.get("method", {})}}
    try:
        folder = path.parent if path is not None else None
        config = Config.model_validate(raw, context={"folder": folder})
        _check_method(config, path, text)
    except ValidationError as error:
        raise FedmtError(_explain(error, Config, (), path, text)) from None
    except FedmtError as error:
        # Raised by an options class, which knows its key ("training.rounds: …") but not the file.
        if str(error).startswith(str(path)):
            raise
        key = str(error).split(":", 1)[0]
        raise FedmtError(f"{_place(path, text, tuple(key.split('.')))}{error}") from None
    where = _place(path, text, ())
    if config.benchmark is None:
        needed = [k for k in ("wanted", "reference", "centers") if not getattr(config, k)]
        if needed:
            raise FedmtError(
                f"{where}missing {listed(needed)}: a config has either [benchmark], or wanted, "
                "[reference] and [[centers]]."
            )
    elif config.wanted or config.reference or config.centers or config.tests:
        raise FedmtError(f"{where}both [benchmark] and a federation of its own are given; keep one.")
    return config


def dump_config(config: Config) -> str:
    """The resolved config as TOML: every default spelled out, so that it runs again as it ran."""
    plain = _without_none(config.model_dump(mode="json"))
    plain["method"] = _without_none(_method_options(config))
    return tomli_w.dumps(plain)


def _method_options(config: Config) -> dict[str, Any]:
    method = config.build_method()
    own = {f.name for f in dataclasses.fields(method)} - {"training", "augmentation"}
    options = {f.name: getattr(method, f.name) for f in dataclasses.fields(method) if f.name in own}
    return {"name": method.name, **options}


def _check_method(config: Config, path: Path | None, text: str) -> None:
    name = config.method.get("name")
    if name not in METHODS:
        raise FedmtError(
            f"{_place(path, text, ('method', 'name'))}method.name: no method {name!r}."
            f"{nearest(str(name), METHODS)} Known: {listed(METHODS)}."
        )
    cls = METHODS[name]
    reserved = [k for k in ("training", "augmentation") if k in config.method]
    if reserved:
        raise FedmtError(
            f"{_place(path, text, ('method', reserved[0]))}method.{reserved[0]}: goes into a table of "
            f"its own, [{reserved[0]}]."
        )
    try:
        config.build_method()
    except ValidationError as error:
        raise FedmtError(_explain(error, cls, ("method",), path, text)) from None


def _with_preset(raw: dict[str, Any], path: Path | None, text: str) -> dict[str, Any]:
    name = raw.get("preset")
    if name is None:
        return raw
    if name not in PRESETS:
        raise FedmtError(
            f"{_place(path, text, ('preset',))}preset: no preset {name!r}.{nearest(str(name), PRESETS)} "
            f"Known: {listed(PRESETS)}."
        )
    merged = dict(raw)
    for section, values in PRESETS[name].items():
        own = raw.get(section, {})
        merged[section] = {**values, **own} if isinstance(own, dict) else own
    return merged


def _override(raw: dict[str, Any], item: str) -> None:
    """Applies one `a.b=value`; the value is read as TOML, and as plain text where it is not."""
    key, equals, value = item.partition("=")
    if not equals or not key.strip():
        raise FedmtError(f"--set {item}: expected key=value, as in --set training.rounds=20.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *tables, last = key.strip().split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise FedmtError(f"--set {item}: '{table}' is not a table.")
    raw[last] = parsed


def _explain(
    error: ValidationError, root: type, prefix: tuple[str, ...], path: Path | None, text: str
) -> str:
    """Pydantic's findings, a line each, with place, key and, for an unknown key, the nearest one."""
    lines = []
    for finding in error.errors():
        location = (*prefix, *(part for part in finding["loc"] if not _is_type_tag(part)))
        key = ".".join(str(part) for part in location)
        place = _place(path, text, location)
        if finding["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            known = _keys(root, finding["loc"][:-1])
            lines.append(f"{place}unknown key '{key}'.{nearest(str(location[-1]), known)}")
        elif finding["type"] == "missing":
            lines.append(f"{place}'{key}' is missing.")
        else:
            given = finding["input"]
            shown = "" if isinstance(given, dict | list) else f" (got {given!r})"
            lines.append(f"{place}{key}: {finding['msg'][0].lower()}{finding['msg'][1:]}{shown}.")
    # A union (`str | table`) reports each alternative; the same key twice helps nobody.
    return "\n".join(dict.fromkeys(lines))


def _is_type_tag(part: object) -> bool:
    """Pydantic puts the alternative of a union it tried into the location ('str', 'dict[str,...]', …)."""
    return isinstance(part, str) and bool(
        re.match(r"(str|int|float|dict\[|tuple\[|function-|constrained|json)", part)
    )


def _keys(root: type, location: tuple[int | str, ...]) -> list[str]:
    """The keys known at a place of the config, by walking the types of `root`."""
    current: Any = root
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        hints = typing.get_type_hints(current) if isinstance(current, type) else {}
        current = _inner(hints.get(part))
    if isinstance(current, type) and issubclass(current, BaseModel):
        return list(current.model_fields)
    if isinstance(current, type) and dataclasses.is_dataclass(current):
        return [f.name for f in dataclasses.fields(current)]
    return []


def _inner(hint: Any) -> Any:
    """`X` of `X | None`, `list[X]` and `Annotated[X, …]`."""
    while typing.get_origin(hint) is not None or isinstance(hint, types.UnionType):
        arguments = [a for a in typing.get_args(hint) if a is not types.NoneType]
        if not arguments:
            return None
        hint = arguments[0]
    return hint


def _place(path: Path | None, text: str, location: tuple[int | str, ...]) -> str:
    """`file.toml, line 12: `, with as much of it as is known."""
    if path is None:
        return ""
    line = _line(text, location)
    return f"{path}, line {line}: " if line else f"{path}: "


def _line(text: str, location: tuple[int | str, ...]) -> int | None:
    """The line of a key in a TOML text: the table's header followed, then the key inside it."""
    table: list[int | str] = []
    counts: dict[str, int] = {}
    best = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[(\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            name = header.group(2)
            table = list(name.replace('"', "").split("."))
            if header.group(1):
                counts[name] = counts.get(name, -1) + 1
                table.append(counts[name])
            if table == list(location)[: len(table)]:
                best = number
            continue
        key = re.match(r"""\s*["']?([\w .-]+?)["']?\s*=""", line)
        if key:
            here = [*table, *key.group(1).split(".")]
            if here == list(location)[: len(here)]:
                return number
    return best


def _without_none(value: Any) -> Any:
    """TOML has no null: an option that is not set is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
