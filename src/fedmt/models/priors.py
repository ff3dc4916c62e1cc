"""The prior of predictions, as a user specifies it: the expected frequencies of the wanted classes.

`uniform`: all are equally frequent. `reference`: as frequent as among the samples that the reference center
trained on, plus one of each class. `centers`: as frequent as the centers estimate. Or the user's own shares,
as a table in a file, a mapping or an array (docs/guides/rare-classes.md).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import LabelSpace
from fedmt.core.priors import named_shares
from fedmt.inputs.rows import table_rows

NAMES = ("uniform", "reference", "centers")

Shares = tuple[float, ...]
"""One share for each wanted class, in the order of the classes; they sum to 1."""


@dataclass(frozen=True)
class Prior:
    """name: one of NAMES, or 'given'. estimates: of a mean of the centers' estimates, how many there are of
    how many centers."""

    name: str
    shares: Shares
    estimates: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """A description of the class frequencies that continues "answers for"."""
        return {
            "uniform": "equally frequent classes",
            "reference": "classes as frequent as at the reference center",
            "centers": f"classes as frequent as at the centers{of_some(self.estimates)}",
        }.get(self.name, "the class frequencies that were given")


def of_some(estimates: tuple[int, int] | None) -> str:
    """` (the mean of 2 of 3 centers)` if estimates are missing from a mean, else an empty string."""
    if estimates is None or estimates[0] == estimates[1]:
        return ""
    return f" (the mean of {estimates[0]:,} of {estimates[1]:,} centers)"


def uniform(classes: int) -> Shares:
    return (1 / classes,) * classes


def chosen(given: Any, wanted: LabelSpace, known: Mapping[str, Prior], missing: Mapping[str, str]) -> Prior:
    """The prior that a user specifies.

    given: a name, a path of a file, shares by class, or shares in the order of the classes. known: by name.
    missing: why a name that might be known is not.
    """
    if isinstance(given, str) and given in NAMES:
        if given == "uniform":
            return Prior(given, uniform(len(wanted)))
        if given not in known:
            raise FedmtError(f"prior: '{given}' is not known. {missing.get(given, '')}".rstrip())
        return known[given]
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        # An empty text would be the current folder.
        if not given or (not path.exists() and path.suffix not in (".csv", ".toml")):
            raise FedmtError(
                f"prior: '{given}' is none of {listed(NAMES)}, and there is no such "
                f"file.{nearest(str(given), NAMES)}"
            )
        return Prior("given", _in_order(_read(path), wanted, str(path)))
    if (
        type(given).__name__ == "Series"
    ):  # of pandas, whose `value_counts` begins with the most frequent class
        given = {_name(key, wanted): share for key, share in given.items()}
    if isinstance(given, Mapping):
        return Prior("given", _in_order(given, wanted, "prior"))
    return Prior("given", _in_order(_by_place(given, wanted), wanted, "prior"))


def _name(key: Any, wanted: LabelSpace) -> str:
    """The class that an entry of an index stands for: its name, or its position."""
    return wanted.classes[key] if isinstance(key, int) and 0 <= key < len(wanted) else str(key)


def _in_order(shares: Mapping[str, Any], wanted: LabelSpace, where: str) -> Shares:
    return tuple(named_shares(shares, wanted, where).values())


def _by_place(given: Any, wanted: LabelSpace) -> dict[str, float]:
    expected = f"expected one share for each of the {len(wanted)} classes of '{wanted.name}', in their order"
    try:
        values = given if isinstance(given, Tensor) else torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise FedmtError(
            f"prior: an object of type {type(given).__name__}; expected {listed(NAMES)}, a file, shares by "
            "class, or an array of shares."
        ) from None
    if values.dim() == 0:
        raise FedmtError(f"prior: a single number ({given}), {expected}.")
    if values.shape != (len(wanted),):
        raise FedmtError(f"prior: an array of shape {tuple(values.shape)}, {expected}.")
    return dict(zip(wanted, values.double().tolist(), strict=True))


def _read(path: Path) -> dict[str, Any]:
    """Shares by class: a CSV with the columns `class` and `share`, or TOML with lines `class = share`."""
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    if path.suffix.lower() != ".toml":
        raise FedmtError(
            f"{path}: expected a table of class frequencies, a .csv file with the columns 'class' and "
            "'share', or a .toml file with a line `class = share` for each class."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise FedmtError(f"{path}: cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedmtError(
            f"{path}: not valid TOML: {error}. Put a class with spaces in its name in double quotes."
        ) from None


def _read_csv(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line, (name, share) in table_rows(path, ["class", "share"]):
        where = f"{path}, line {line}"
        if name in found:
            raise FedmtError(f"{where}: class '{name}' has a share already.")
        try:
            found[name] = float(share)
        except ValueError:
            raise FedmtError(f"{where}: share '{share}', expected a number from 0 to 1.") from None
    return found


def by_class(shares: Sequence[float], wanted: LabelSpace) -> dict[str, float]:
    """Shares with the names of their classes, rounded to what a reader needs."""
    return {name: round(share, 6) for name, share in zip(wanted, shares, strict=True)}


def why_unknown(method: Mapping[str, Any], estimates: tuple[int, int], private: bool) -> dict[str, str]:
    """For each unknown prior: why it is unknown, and what to do. method: its name and options. estimates: how
    many centers' estimates are known here, of how many centers. private: whether training was."""
    own = "Give the shares yourself, in a file with one for each class."
    known, centers = estimates
    if method.get("prior") == "estimated" and private:
        why = (
            "The model was trained with [privacy], so no center estimated its own: an estimate would be "
            "computed from all of its records."
        )
    elif method.get("prior") == "estimated" and known == 1 < centers:
        why = (
            f"The estimate of only 1 of {centers:,} centers is known, and it is not used alone, because an "
            "exported model would reveal it. Train until a second center has taken part. Over Flower, its "
            "center.toml needs share_prior = true."
        )
    elif method.get("prior") == "estimated":
        why = (
            "No estimate of any center is available here. Centers on other machines keep theirs unless "
            "their center.toml has share_prior = true, and those with [privacy] have none. Before the first "
            "round there is none either."
        )
    elif method.get("prior") == "ignored":
        why = "The model was trained with method.prior = 'ignored', so no center estimated its own."
    else:
        why = f"With method '{method['name']}', centers do not estimate the class frequencies."
    return {"centers": f"{why} {own}", "reference": f"An earlier version of fedmt wrote the model. {own}"}
