"""What a center's answer contains is checked before it counts, because the coordinator trusts no number.

Pure functions of an answer's content. Each returns what may be used, or raises `LeftOut` with a reason for
the log and the metrics. A wrong number affects only its own center.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedmt.core.errors import FedmtError, listed
from fedmt.core.escaping import escaped
from fedmt.core.static_bn import Statistics
from fedmt.data.member import Member
from fedmt.engines.site import Record
from fedmt.privacy import PrivacySpec

log = logging.getLogger("flwr")


class LeftOut(Exception):
    """Why an answer does not count."""


MEASURES: dict[str, float] = {
    "confident_share": 1.0,
    "pseudo_label_accuracy": 1.0,
    "correspondence_error": 1e4,
    "prior_error": 1.0,
    "filled_columns": 1e6,
    "unprojected_samples": 1e9,
    "privacy_spent": 1e6,
}
"""What a center may report about its round besides losses, and the largest plausible value. The smallest is
0. Rounding errors are tolerated (`SLACK`)."""

SLACK = 1e-3
MOST_LOSS = 1e9
MOST_SAMPLES = 100_000_000
"""No real center has more samples. A center that claims more would dominate a mean that is weighted by
samples."""

FAR = 100.0
"""How far a batch-norm statistic may be from the reference center's, in standard deviations of that layer.

Honest centers stay below 2 (docs/guides/guards.md).
"""


def metrics_of(given: Any) -> Record:
    """What a center reports about its round, limited to known keys."""
    if not isinstance(given, dict):
        return {}
    found: Record = {}
    for name, most in MEASURES.items():
        if name in given:
            found[name] = _within(given[name], -SLACK, most + SLACK, f"its {name}")
    losses = given.get("losses")
    if isinstance(losses, dict) and losses:
        found["losses"] = {
            str(k): _within(v, -MOST_LOSS, MOST_LOSS, "one of its losses") for k, v in losses.items()
        }
    return found


def samples_of(facts: Mapping[str, Any], known: int | None = None) -> float:
    """known: the number in its check. A center may not change it later, because it determines its weight in a
    mean."""
    samples = facts.get("samples")
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= MOST_SAMPLES:
        raise LeftOut(f"it reports {_shown(samples)} samples, expected 1 to {MOST_SAMPLES:,}")
    if known is not None and samples != known:
        raise LeftOut(f"it reports {samples:,} samples, but in its check it reported {known:,}")
    return float(samples)


def correspondence_of(matrix: Tensor, classes: int, wanted: int) -> Tensor:
    """An M-hat [classes, wanted] of probabilities in which every column sums to 1."""
    if tuple(matrix.shape) != (classes, wanted) or not matrix.is_floating_point():
        raise LeftOut(
            "its estimated correspondence is not a matrix with one row per class and one column per wanted "
            "class"
        )
    if not _are_shares(matrix) or not bool(((matrix.double().sum(0) - 1).abs() <= SLACK).all()):
        raise LeftOut("its estimated correspondence does not consist of probabilities whose columns sum to 1")
    return matrix


def prior_of(prior: Tensor, size: Tensor | None, wanted: int) -> tuple[Tensor, Tensor]:
    """A prior [wanted], and the number of samples that it was estimated from."""
    sums_to_1 = abs(float(prior.double().sum()) - 1) <= SLACK
    if tuple(prior.shape) != (wanted,) or not _are_shares(prior) or not sums_to_1:
        raise LeftOut("its estimated prior does not have one share per wanted class")
    if size is None or size.numel() != 1 or size.is_floating_point():
        raise LeftOut("it sent its estimated prior without its number of samples")
    samples_of({"samples": int(size)})
    return prior, size.reshape(())


def shared_of(found: Mapping[str, Tensor], center: Member, wanted: int) -> dict[str, Tensor]:
    """The M-hat and the prior, with the number of samples, that a center chose to send."""
    taken: dict[str, Tensor] = {}
    if "correspondence" in found and center.space is not None:
        taken["correspondence"] = correspondence_of(found["correspondence"], len(center.space), wanted)
    if "prior" in found:
        taken["prior"], taken["size"] = prior_of(found["prior"], found.get("size"), wanted)
    return taken


def statistics_of(found: Mapping[str, Tensor], own: Statistics) -> Statistics:
    """Batch-norm statistics of a center, checked against the reference center's `own` of the same model."""
    if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in own.items()}:
        raise LeftOut("its statistics do not belong to this model")
    if not all(bool(v.isfinite().all()) for v in found.values()):
        raise LeftOut("its statistics contain NaN or Inf")
    for key, value in found.items():
        if key.endswith(".running_var"):
            if bool((value < 0).any()):
                raise LeftOut(f"its statistics have a variance of {float(value.min()):.3g} in '{key}'")
            most = FAR**2 * float(own[key].double().max())
            if float(value.double().max()) > most > 0:
                raise LeftOut(
                    f"its statistics have a variance of {float(value.max()):.3g} in '{key}', but at most "
                    f"{most:.3g} is plausible"
                )
        elif key.endswith(".running_mean"):
            deviation = float(own[key.removesuffix("mean") + "var"].double().max()) ** 0.5
            away = float((value.double() - own[key].double().to(value.device)).abs().max())
            if away > FAR * deviation > 0:
                raise LeftOut(
                    f"its statistics have a mean in '{key}' that is {away:.3g} away from the reference "
                    f"center's, but at most {FAR * deviation:.3g} is plausible"
                )
    return dict(found)


def variances_stay_positive(received: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> None:
    """With `batch_norm = "running"`, statistics travel like weights."""
    for key, change in update.items():
        if key.endswith(".running_var") and bool((received[key].to(change) + change < 0).any()):
            raise LeftOut(f"its update makes a variance in '{key}' negative")


def same_weights(update: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Checks that an update has exactly the expected weights, in their shapes and types."""
    if update.keys() != expected.keys():
        odd = sorted(update.keys() ^ expected.keys())
        raise LeftOut(f"its update has other weights than expected: {listed(odd, 3)}")
    for key, value in update.items():
        if value.shape != expected[key].shape or value.dtype != expected[key].dtype:
            raise LeftOut(
                f"its update of '{key}' is {value.dtype} {tuple(value.shape)}, expected "
                f"{expected[key].dtype} {tuple(expected[key].shape)}"
            )


def reason(error: Exception) -> str:
    """Why an answer does not count, in printable characters."""
    if isinstance(error, LeftOut | FedmtError):
        return escaped(error).rstrip(".")
    log.error("An answer could not be accepted.", exc_info=error)
    return f"its answer cannot be accepted ({type(error).__name__})"


def _are_shares(values: Tensor) -> bool:
    values = values.double()
    return bool(((values >= -SLACK) & (values <= 1 + SLACK)).all())  # NaN satisfies neither comparison


def _is_number(value: Any) -> bool:
    """Not NaN, which no comparison rejects. An integer may be too large for `math.isfinite`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _within(value: Any, least: float, most: float, what: str) -> float:
    """Checks that a number is in a range. It is compared before it is converted, because an integer may be
    too large for a float."""
    if not _is_number(value) or not least <= value <= most:
        raise LeftOut(f"{what} is {_shown(value)}, expected {math.ceil(least):g} to {math.floor(most):g}")
    return float(value)


def _shown(value: Any) -> str:
    """A value for a message, however long it is. An integer with thousands of digits cannot even be
    printed."""
    if isinstance(value, int) and abs(value) > 10**15:
        return f"about {'-' if value < 0 else ''}2^{abs(value).bit_length() - 1}"
    return repr(value)[:40]


def not_promised(given: Any, asked: PrivacySpec | None) -> str:
    """What a center's privacy promise lacks compared with the coordinator's requirement. Empty if nothing is
    missing."""
    if asked is None:
        return ""
    if not isinstance(given, dict) or not all(_is_number(given.get(k)) for k in ("epsilon", "delta")):
        return "the federation's config requires [privacy], but its center.toml has none"
    if given["epsilon"] > asked.epsilon or given["delta"] > asked.delta:
        return (
            f"its [privacy] has epsilon {given['epsilon']:g} and delta {given['delta']:g}; the federation's "
            f"config requires at most {asked.epsilon:g} and {asked.delta:g}"
        )
    return ""
