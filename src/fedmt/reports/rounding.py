"""Numbers as the page writes them: shares with one digit in percent, halves upward, as its scripts do."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """
    >>> percent(0.7125)
    '71.3%'
    """
    return f"{math.floor(1000 * share + 0.5) / 10:.1f}%"


def points(share: float, sign: bool = False) -> str:
    """A difference of shares in percentage points.

    >>> points(0.0791), points(-0.0125, sign=True)
    ('7.9', '-1.3')
    """
    size = math.copysign(math.floor(1000 * abs(share) + 0.5) / 10, share)
    return f"{size:{'+' if sign else ''}.1f}"


def duration(seconds: float) -> str:
    """
    >>> duration(80.4), duration(600), duration(9000)
    ('80 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
