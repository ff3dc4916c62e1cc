"""How large a run is: as in the paper, minutes or seconds; and what it costs (docs/guides/sweeps.md)."""

from __future__ import annotations

from typing import Any, Literal

from fedmt.config import Config, build_method
from fedmt.config.schema import find_input
from fedmt.inputs import DEFAULT_INPUT

Scale = Literal["full", "small", "tiny"]
SCALES: tuple[Scale, ...] = ("full", "small", "tiny")

KNOWN_SETS = {"cifar100": (50_000, 100), "fashion_mnist": (7_000, 10)}
"""Training images and wanted classes, for estimating a run's cost without the data."""


def scale_settings(config: Config, scale: Scale) -> dict[str, Any]:
    """What a scale changes in a checked config. None removes a setting. The whole rule is here.

    small: one to four minutes per run on one core. tiny: seconds, to check that everything works. A benchmark
    on the bundled images is already small.
    """
    benchmark, training = config.benchmark, config.training
    bundled = benchmark is not None and benchmark.data.source == "fashion_mnist"
    if scale == "full" or (scale == "small" and bundled):
        return {}
    small = scale == "small"
    least = min(training.rounds, 5)
    found: dict[str, Any] = {
        "model.weights": None,
        "training.rounds": max(training.rounds // 16, least) if small else min(training.rounds, 2),
        "training.local_epochs": min(training.local_epochs, 1),
        "training.reference_epochs": min(training.reference_epochs, 5),
        "training.warmup_epochs": min(training.warmup_epochs, 20 if small else 2),
    }
    if config.input == DEFAULT_INPUT.name:  # the other networks are small
        found["model.backbone"] = "small_cnn"
    tuning = getattr(build_method(config), "fine_tune_epochs", None)
    if tuning is not None:
        found["method.fine_tune_epochs"] = max(tuning // 5, 1) if small else min(tuning, 2)
    for key, value in find_input(config.input).scaled_down(config.options).items():
        found[f"{find_input(config.input).name}.{key}"] = value
    if benchmark is not None:
        if benchmark.samples is not None:
            found["benchmark.samples"] = max(benchmark.samples // (5 if small else 40), 1)
        # Otherwise use all of them: the number is small for any set, but not for whole groups.
        elif not small and not bundled and benchmark.data.group_column is None:
            found["benchmark.samples"] = 40
            if benchmark.split == "natural":  # this is all of them
                found["benchmark.split"] = "iid"
            if benchmark.augment_to:  # it states the number in another way
                found["benchmark.augment_to"] = None
        if benchmark.data.source == "cifar100":
            found["benchmark.subset"] = 4 if small else 2
        if not bundled:
            found["benchmark.test_samples"] = 2000 if small else 200
    return found


def cost(config: Config) -> int | None:
    """Number of images that a run trains on, counting each pass: centers x samples x epochs x rounds, plus
    those of the reference center. None if only the data could tell."""
    benchmark, training = config.benchmark, config.training
    if benchmark is None:
        return None
    images, classes = KNOWN_SETS.get(benchmark.data.source, (0, len(config.spaces.get(benchmark.wanted, ()))))
    share = benchmark.reference_share
    if not classes or (share is not None and not images):
        return None
    reference = round(share * images) if share is not None else classes * (benchmark.per_class or 0)
    method = build_method(config)
    tuning = getattr(
        method, "fine_tune_epochs", None
    )  # this is all that FedTrans trains at the reference center
    warmup = 0 if method.schedule.reference_counts_in_mean else training.warmup_epochs
    passes = warmup + training.rounds * training.reference_epochs if tuning is None else tuning
    total = reference * passes
    if method.schedule.centers_train:
        count = sum(benchmark.spaces.values())
        samples = benchmark.samples or (images - reference) // count
        taking_part = training.participation * (1 - training.dropouts)
        total += round(count * taking_part * samples * training.local_epochs * training.rounds)
    return total
