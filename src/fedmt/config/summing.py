"""Secure aggregation in a config: on which terms, and what it excludes."""

from __future__ import annotations

from fedmt.aggregation import Transform
from fedmt.config.building import build_guard, build_method, build_strategy, build_transforms
from fedmt.config.schema import Config
from fedmt.core.errors import FedmtError
from fedmt.privacy.masking.terms import Summing, usual_threshold

KEY = "deployment.secure_aggregation"


def build_summing(config: Config, centers: int) -> Summing | None:
    """How updates are summed; None without secure aggregation. centers: how many the federation has."""
    if config.deployment is None or not config.sums_only:
        return None
    threshold = config.deployment.threshold or usual_threshold(centers)
    return Summing(threshold, config.deployment.max_samples)


def check_sums_suffice(config: Config) -> None:
    """Refuses what needs more than the sum of the updates."""
    if not config.sums_only:
        return
    strategy, guard, method = build_strategy(config), build_guard(config), build_method(config)
    hides = "which secure aggregation hides from the coordinator"
    if strategy.needs_single_updates:
        raise FedmtError(
            f"{KEY}: aggregation.name = '{strategy.name}' looks at each center's own update, {hides}; choose "
            "another strategy, such as 'fedavgm', or leave secure aggregation out."
        )
    if guard.needs_single_updates:
        raise FedmtError(
            f"{KEY}: aggregation.guard = '{guard.name}' looks at each center's own update, {hides}; leave "
            "the guard out, or secure aggregation."
        )
    if getattr(method, "average", False):
        raise FedmtError(
            f"{KEY}: method.average needs each center's estimated correspondence, {hides}; set "
            "method.average = false."
        )
    if config.attack is not None:
        raise FedmtError(
            f"{KEY}: [attack] changes single updates in a simulation, which here exist as sums alone; leave "
            "one of the two out."
        )
    if config.training.dropouts:
        raise FedmtError(
            f"{KEY}: training.dropouts simulates centers that vanish, and a sum of too few is not revealed; "
            "leave it out."
        )
    for transform in build_transforms(config):
        if type(transform).after_receiving is not Transform.after_receiving:
            raise FedmtError(
                f"{KEY}: {type(transform).__name__} changes each center's update after it was received, "
                f"{hides}."
            )
