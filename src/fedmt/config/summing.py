"""Secure aggregation in a config: its terms, and what it excludes."""

from __future__ import annotations

from fedmt.aggregation import Transform
from fedmt.config.building import build_guard, build_method, build_strategy, build_transforms
from fedmt.config.schema import Config
from fedmt.core.errors import FedmtError
from fedmt.privacy.masking.terms import Summing, usual_threshold

KEY = "deployment.secure_aggregation"


def build_summing(config: Config, centers: int) -> Summing | None:
    """How updates are summed. None without secure aggregation. centers: the number of centers in the
    federation."""
    if config.deployment is None or not config.sums_only:
        return None
    threshold = config.deployment.threshold or usual_threshold(centers)
    return Summing(threshold, config.deployment.max_samples)


def check_sums_suffice(config: Config) -> None:
    """Rejects settings that need more than the sum of the updates."""
    if not config.sums_only:
        return
    strategy, guard, method = build_strategy(config), build_guard(config), build_method(config)
    hides = "which secure aggregation hides from the coordinator"
    if strategy.needs_single_updates:
        raise FedmtError(
            f"{KEY}: aggregation.name = '{strategy.name}' looks at each center's own update, {hides}. Choose "
            "another strategy, such as 'fedavgm', or turn off secure aggregation."
        )
    if guard.needs_single_updates:
        raise FedmtError(
            f"{KEY}: aggregation.guard = '{guard.name}' looks at each center's own update, {hides}. Remove "
            "the guard, or turn off secure aggregation."
        )
    if getattr(method, "average", False):
        raise FedmtError(
            f"{KEY}: method.average needs each center's estimated correspondence, {hides}. Set "
            "method.average = false."
        )
    if config.attack is not None:
        raise FedmtError(
            f"{KEY}: in a simulation, [attack] changes single updates, but with secure aggregation only sums "
            "exist. Keep only one of the two."
        )
    if config.training.dropouts:
        raise FedmtError(
            f"{KEY}: training.dropouts simulates centers that vanish, and a sum over too few centers is not "
            "revealed. Leave it out."
        )
    for transform in build_transforms(config):
        if type(transform).after_receiving is not Transform.after_receiving:
            raise FedmtError(
                f"{KEY}: {type(transform).__name__} changes each center's update after it is received, "
                f"{hides}."
            )
