"""From a config to what it describes: the method, the strategy, the federation and the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from fedmt.aggregation import DEFAULT_GUARD, GUARDS, Guard, NoGuard, Strategy, Transform
from fedmt.aggregation.transforms import TransformSpec
from fedmt.attacks import ATTACKS, Attack
from fedmt.backbones import Classifier, build, find_backbone
from fedmt.backbones.given import PREFIX
from fedmt.backbones.heads import add_heads
from fedmt.config.schema import NAMED, Config
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import LabelSpace
from fedmt.core.registry import option_names, own_tables
from fedmt.core.seeding import seeded
from fedmt.data.benchmark import load_benchmark
from fedmt.data.center import Federation
from fedmt.data.holding import hold_out
from fedmt.data.loading import Vocabulary, load_federation
from fedmt.data.member import Member
from fedmt.inputs import Input
from fedmt.methods import METHODS, Method

GUARD = "guard"
"""The key of [aggregation] that works with every strategy and chooses an entry by name."""

RANDOM_FEATURES = (
    "model.freeze without model.weights: the features come from a network with random weights. Name a file "
    "with trained weights in model.weights."
)


def build_method(config: Config) -> Method:
    """The method with its options, the training and the augmentation."""
    method: Method = build_named(config, "method")
    return method


def build_strategy(config: Config) -> Strategy:
    """The aggregation strategy with its options."""
    strategy: Strategy = build_named(config, "aggregation")
    return strategy


def build_guard(config: Config) -> Guard:
    """What is done about updates that are too large or point in another direction.

    `aggregation.guard` is a name, or a table with a name and options.
    """
    given = config.aggregation.get(GUARD, NoGuard.name if config.sums_only else DEFAULT_GUARD)
    if not isinstance(given, str | dict):
        raise FedmtError(
            f"aggregation.guard: {given!r} given, expected a name or a table with a name and its options. "
            f"Known: {listed(GUARDS)}."
        )
    options = {"name": given} if isinstance(given, str) else {"name": DEFAULT_GUARD, **given}
    entry = GUARDS.find(options.pop("name"), "aggregation.guard")
    _known_options("aggregation.guard", entry, options)
    guard: Guard = _adapter(entry).validate_python(options)
    schedule = build_method(config).schedule
    trains = schedule.reference_counts_in_mean or schedule.reference_trains_after(1, 2)
    if guard.needs_root and not (trains and config.training.reference_epochs > 0):
        raise FedmtError(
            f"aggregation.guard: '{guard.name}' compares each update with the reference center's own, but "
            "with this method and these settings, the reference center does not train in every round. "
            "Choose another guard."
        )
    return guard


def build_attack(config: Config) -> Attack | None:
    """The bad centers that a benchmark simulates."""
    if config.attack is None:
        return None
    options = dict(config.attack)
    entry = ATTACKS.find(options.pop("name", None), "attack.name")
    _known_options("attack", entry, options)
    attack: Attack = _adapter(cast(Any, entry)).validate_python(options)
    return attack


def _known_options(key: str, entry: type[Guard] | type[Attack], options: Mapping[str, Any]) -> None:
    known = option_names(entry)
    for option in options:
        if option not in known:
            raise FedmtError(
                f"{key}: '{entry.name}' has no option '{option}'.{nearest(option, known)} Known: "
                f"{listed(known)}."
            )


def build_transforms(config: Config) -> tuple[Transform, ...]:
    """What happens to an update before a center sends it and after the coordinator receives it.

    The transforms come from the config's tables that describe one, in the order of the schema. Every engine,
    and a center on its own machine, calls this.
    """
    tables = (getattr(config, name) for name in type(config).model_fields)
    return tuple(table.transform() for table in tables if isinstance(table, TransformSpec))


def build_named(config: Config, table: str) -> Any:
    """The entry that a table chooses by name, with its options. Some options have their own table."""
    options = {key: value for key, value in getattr(config, table).items() if key != GUARD}
    entry = NAMED[table][1].find(options.pop("name"), f"{table}.name")
    options |= {name: getattr(config, name) for name in own_tables(entry)}
    return _adapter(entry).validate_python(options)


def accepts(entry: type, option: str, value: Any) -> bool:
    """Whether an entry's option may have this value, as far as its type tells."""
    try:
        _adapter(entry).validate_python({option: value})
    except ValidationError:
        return False
    except FedmtError:
        pass  # the value does not fit the defaults of other options
    return True


@cache
def _adapter(entry: Any) -> TypeAdapter[Any]:
    """pydantic's validator of an entry. It takes milliseconds to make, and a sweep builds thousands of
    methods."""
    return TypeAdapter(entry)


def build_federation(config: Config, at_hand: bool = True) -> tuple[Federation, tuple[str, ...]]:
    """The federation, and notes for the user.

    at_hand: False if the centers' data are on other machines. A benchmark, which is one set, is read anyway
    and then discarded.
    """
    spaces = {name: LabelSpace(name, classes) for name, classes in config.spaces.items()}
    vocabulary = Vocabulary(spaces, config.correspondences, config._where)
    if config.benchmark is not None:
        federation, notes = load_benchmark(
            config.benchmark, config.options, vocabulary, config.seed, config.augmentation
        )
        attack = build_attack(config)
        if attack is not None:
            if not at_hand:
                raise FedmtError("attack: this table simulates bad centers in one process. Remove it.")
            federation = attack.on_data(federation)
            notes = (*notes, f"Simulated: {listed(attack.centers)} with attack '{attack.name}'.")
        if not at_hand:
            known = tuple(Member(c.name, c.space, c.correspondence) for c in federation.centers)
            federation = replace(federation, centers=(), elsewhere=known)
    else:
        assert config.wanted is not None and config.reference is not None
        federation, notes = load_federation(
            config.wanted, config.reference, config.centers, config.tests, config.options, vocabulary, at_hand
        )
    if config.model.freeze is not None and config.model.weights is None:
        notes = (*notes, RANDOM_FEATURES)
    federation, held = with_held_out(federation, config)
    return federation, (*notes, *held)


def with_held_out(federation: Federation, config: Config) -> tuple[Federation, tuple[str, ...]]:
    """The federation, with the samples that its config holds out for calibration, and a note about them."""
    if config.calibration is None:
        return federation, ()
    federation, note = hold_out(federation, config.calibration, config.seed)
    return federation, (note,)


def starting_model(config: Config, federation: Federation, network: nn.Module | None = None) -> Classifier:
    """The model at a run's starting weights, which follow from the seed alone.

    network: the user's own module, if the config says that one is given. It brings its own weights.
    """
    with seeded(config.seed):
        return build_model(config, federation, network)


def build_model(config: Config, federation: Federation, network: nn.Module | None = None) -> Classifier:
    """The K-class model at its starting weights. With a frozen backbone, this is the head on its features."""
    spec, input, reference = config.model, federation.input, federation.reference
    if spec.freeze is None:
        weights, normalization = spec.weights, normalization_of(config, federation)
    else:
        weights, normalization = None, input.statistics(reference.values)
    sizes = [len(space) for space in federation.spaces]
    model = build_network(config, input, sizes, weights, normalization, network)
    seen = input.plain(reference.values[:2])
    expected = (len(seen), len(federation.wanted))
    key, name = _trained(config)
    where = f"{config._where}: {key}: '{name}'"
    made = config.reference is not None and config.reference.source == "arrays"
    also = "" if made or not input.shaped_by else f", or change {input.shaped_by}"
    try:
        with torch.no_grad():
            scores: object = model.eval()(seen)
    except Exception as error:  # the user's own network may do anything
        raise FedmtError(
            f"{where} cannot take {len(seen)} {input.word}s as a tensor of shape {tuple(seen.shape)}: "
            f"{type(error).__name__}: {str(error).rstrip('.')}. Choose another {key}{also}."
        ) from error
    if not isinstance(scores, Tensor):
        raise FedmtError(
            f"{where} returned an object of type {type(scores).__name__}, expected a tensor of scores of "
            f"shape {expected}."
        )
    if tuple(scores.shape) != expected:
        raise FedmtError(
            f"{where} returned scores of shape {tuple(scores.shape)} for {expected[0]} {input.word}s, "
            f"expected {expected}, with one score for each class of '{federation.wanted.name}'."
        )
    return model


def normalization_of(config: Config, federation: Federation) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation that normalize the samples of the federation for the backbone."""
    spec, input = config.model, federation.input
    by = spec.normalize or ("imagenet" if spec.weights else "reference")
    if by == "imagenet":
        given = spec.backbone.startswith(PREFIX)
        return input.pretrained_statistics(None if given else find_backbone(spec.backbone, input).published)
    if by == "none":
        return input.identity_statistics
    return input.statistics(federation.reference.values)


def build_network(
    config: Config,
    input: Input,
    sizes: Sequence[int],
    weights: Path | None = None,
    normalization: tuple[Tensor, Tensor] | None = None,
    network: nn.Module | None = None,
) -> Classifier:
    """The network for label spaces of `sizes`, the wanted one first.

    weights, normalization: what it starts from. A center receives the whole network and needs neither.
    network: as in `starting_model`.
    """
    key, name = _trained(config)
    spec = config.model
    head = spec.head if isinstance(spec.head, bool) else None
    backbone = build(name, sizes[0], input, weights, spec.max_pool, key, network, head)
    model = Classifier(backbone, *(normalization or input.identity_statistics))
    if METHODS.find(config.method["name"], "method.name").heads:
        add_heads(model, sizes[0], sizes[1:])
    return model


def _trained(config: Config) -> tuple[str, str]:
    """The key and the name of the trained network: the backbone, or the head on a frozen backbone."""
    spec = config.model
    return ("model.head", spec.head) if isinstance(spec.head, str) else ("model.backbone", spec.backbone)
