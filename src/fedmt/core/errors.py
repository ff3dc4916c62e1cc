"""The one exception that a user's mistake raises.

Its message names the file, line, center or class, and says what was expected and what to do. The command line
prints it without a traceback and exits with status 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class FedmtError(Exception):
    """Something the user can fix: bad data, a bad config, or a folder that is in the way."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the known word nearest to `word`, or an empty string."""
    close = closest(word, known)
    return f" Did you mean '{close}'?" if close is not None else ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to `word`, if one is similar enough."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def listed(words: Iterable[str], limit: int = 8) -> str:
    """Words as a readable list, cut after `limit`: `'a', 'b' and 3 more`."""
    return cut([f"'{word}'" for word in words], limit)


def cut(texts: Sequence[str], limit: int) -> str:
    """The first `limit` texts, and how many more there are."""
    shown = ", ".join(texts[:limit])
    return shown if len(texts) <= limit else f"{shown} and {len(texts) - limit} more"


def at_least(name: str, value: float, least: float) -> None:
    """Rejects an option below its smallest allowed value (and NaN)."""
    if not value >= least:
        raise FedmtError(f"{name}: {value} given, expected at least {least}.")


def positive(name: str, value: float) -> None:
    """Rejects an option that is not above 0 (and NaN)."""
    if not value > 0:
        raise FedmtError(f"{name}: {value} given, expected more than 0.")


def share(name: str, value: float) -> None:
    """Rejects an option outside 0 <= value < 1."""
    if not 0 <= value < 1:
        raise FedmtError(f"{name}: {value} given, expected at least 0 and less than 1.")


TOLD = 10
"""Number of problems of one source that are listed. The rest are counted."""


def together(problems: Sequence[str]) -> FedmtError:
    """One error for all the problems of a source, so that they can be fixed together."""
    if len(problems) == 1:
        return FedmtError(problems[0])
    more = [f"and {len(problems) - TOLD:,} more."] if len(problems) > TOLD else []
    return FedmtError("\n  ".join([f"{len(problems):,} problems:", *problems[:TOLD], *more]))
