"""Numbers as people read them, the same on the command line, in a sentence of the report and in its tables.

The report's scripts receive five significant digits and round halves upward, so these functions do the same.
"""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """
    >>> percent(0.7125), percent(0.71149999)
    ('71.3%', '71.2%')
    """
    return f"{math.floor(1000 * float(f'{share:.5g}') + 0.5) / 10:.1f}%"


def points(share: float, sign: bool = False) -> str:
    """A difference of shares in percentage points, with the minus sign that the page's scripts write.

    >>> points(0.0791), points(0.0125, sign=True)
    ('7.9', '+1.3')
    """
    size = math.copysign(math.floor(1000 * float(f"{abs(share):.5g}") + 0.5) / 10, share)
    return f"{size:{'+' if sign else ''}.1f}".replace("-", "\N{MINUS SIGN}")


def duration(seconds: float) -> str:
    """
    >>> duration(80.4), duration(600), duration(9000)
    ('80 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
