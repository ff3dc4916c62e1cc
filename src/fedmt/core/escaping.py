"""Makes text from elsewhere safe to print. No newline can forge a line of a log, and no control code reaches
a terminal."""

from __future__ import annotations

LONGEST = 500


def escaped(text: object, longest: int = LONGEST) -> str:
    r"""Every character that is not printable as Python writes it, such as \x1b, and no more than `longest`.

    >>> escaped("down\nRound 7: fine\x1b[2J")
    'down\\nRound 7: fine\\x1b[2J'
    """
    said = str(text)
    short = "".join(c if c.isprintable() else repr(c)[1:-1] for c in said[:longest])
    return short if len(said) <= longest else f"{short} …"
