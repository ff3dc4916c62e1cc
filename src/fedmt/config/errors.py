"""Where in a config a mistake is, and what to say about it."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedmt.core.errors import listed, nearest


@dataclass(frozen=True)
class Origin:
    """Where a config came from, for error messages: its file, its text, and the keys that --set changed."""

    path: Path | None = None
    text: str = ""
    overridden: tuple[tuple[str, ...], ...] = ()

    def place(self, *location: int | str) -> str:
        """`file.toml, line 12: `, `--set training.rounds: `, or as much of this as is known."""
        for key in self.overridden:
            if location[: len(key)] == key:
                return f"--set {'.'.join(key)}: "
        line = _line(self.text, location)
        for key in self.overridden:
            # A whole table is rejected that is not in the file.
            if location and not line and key[: len(location)] == location:
                return f"--set {'.'.join(key)}: "
        if self.path is None:
            return ""
        return f"{self.path}, line {line}: " if line else f"{self.path}: "

    def blame(self, location: Sequence[int | str], message: str) -> str:
        """`file.toml, line 12: training.rounds: message`, or `--set training.rounds: message`."""
        place, key = self.place(*location), f"{_dotted(tuple(location))}: "
        return f"{place}{message}" if place == f"--set {key}" else f"{place}{key}{message}"


def explain(error: ValidationError, root: type, prefix: tuple[str, ...], origin: Origin) -> str:
    """Pydantic's findings, one per line, with place and key. Unknown keys come first, with the nearest known
    key."""
    unknown, others = [], []
    findings = [
        ((*prefix, *(part for part in finding["loc"] if not _is_type_tag(part))), finding)
        for finding in error.errors()
    ]
    for location, finding in findings:
        if location[:1] == ("correspondences",) or (
            location[:1] == ("centers",) and "correspondence" in location
        ):
            # A union of a file and two kinds of table. Pydantic would report each alternative separately.
            end = location.index("correspondence") + 1 if "correspondence" in location else 2
            location = location[:end]
            message = 'expected a CSV file, or a table {wanted class = "class" or {class = probability}}'
            others.append(origin.blame(location, f"{message}."))
        elif finding["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            known = _keys(root, finding["loc"][:-1])
            hint = nearest(str(location[-1]), known) or (f" Known: {listed(known, 20)}." if known else "")
            unknown.append(f"{origin.place(*location)}unknown key '{_dotted(location)}'.{hint}")
        elif finding["type"] == "missing":
            others.append(f"{origin.place(*location)}'{_dotted(location)}' is missing.")
        elif not any(other != location == other[: len(location)] for other, _ in findings):
            # Pydantic reports each alternative of a union. If one has mistakes further inside, it is the one
            # that was meant, and only these are told. Otherwise, one line names all alternatives.
            alternatives = [f for other, f in findings if other == location]
            others.append(origin.blame(location, _wrong(alternatives)))
    return "\n".join(dict.fromkeys(unknown + others))


def _wrong(alternatives: Sequence[ErrorDetails]) -> str:
    """What is wrong with a value, and what each alternative expects."""
    given, said = alternatives[0]["input"], ""
    known: list[str] = []
    for finding in alternatives:
        expected = _said(finding["msg"])
        said += f", or {expected.removeprefix('input should be ')}" if said else expected
        if finding["type"] == "literal_error":
            known += re.findall(r"'([^']+)'", finding["ctx"]["expected"])
    said = said.replace(", or a table", ", or a table {name = value}")
    written = str(given).lower() if isinstance(given, bool) else repr(given)
    shown = "" if isinstance(given, dict | list) else f" (got {written})"
    return f"{said}{shown}.{nearest(given, known) if isinstance(given, str) else ''}"


def _said(message: str) -> str:
    """A message of Pydantic in the words of a config."""
    said = message[0].lower() + message[1:]
    said = re.sub(r"a (valid )?dictionary( or (an )?instance of \S+)?", "a table", said)
    said = re.sub(r", unable to .*", "", said).replace("a valid boolean", "true or false")
    said = said.replace("a valid string", "text")
    return re.sub(r"is not a valid path for <.*>", "should be a path", said)


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _is_type_tag(part: object) -> bool:
    """Pydantic includes the alternative of a union that it tried in the location ('str',
    'dict[str,...]', …)."""
    tags = (
        r"str|bool|int|float|(literal|dict|tuple|json-or-python|lax-or-strict)\[.*|"
        r"(function|constrained)-.*"
    )
    return isinstance(part, str) and re.fullmatch(tags, part) is not None


def _keys(root: type, location: tuple[int | str, ...]) -> list[str]:
    """The known keys at a place in the config, found by walking the types of `root`."""
    current: Any = root
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        hints = typing.get_type_hints(current) if isinstance(current, type) else {}
        current = _inner(hints.get(part))
    if isinstance(current, type) and issubclass(current, BaseModel):
        return list(current.model_fields)
    if isinstance(current, type) and dataclasses.is_dataclass(current):
        return [f.name for f in dataclasses.fields(current)]
    return []


def _inner(hint: Any) -> Any:
    """`X` of `X | None`, `list[X]` and `Annotated[X, …]`."""
    while typing.get_origin(hint) is not None or isinstance(hint, types.UnionType):
        arguments = [a for a in typing.get_args(hint) if a is not types.NoneType]
        if not arguments:
            return None
        hint = arguments[0]
    return hint


def _line(text: str, location: tuple[int | str, ...]) -> int | None:
    """The line of a key in a TOML text: first the header of its table is found, then the key inside it."""
    table: list[int | str] = []
    counts: dict[str, int] = {}
    best = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[(\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            name = header.group(2)
            table = list(name.replace('"', "").split("."))
            if header.group(1):
                counts[name] = counts.get(name, -1) + 1
                table.append(counts[name])
            elif table[0] in counts:  # [centers.correspondence] belongs to the last [[centers]]
                table.insert(1, counts[str(table[0])])
            if table == list(location)[: len(table)]:
                best = number
            continue
        key = re.match(r"""\s*["']?([\w .-]+?)["']?\s*=""", line)
        if key:
            here = [*table, *key.group(1).split(".")]
            if here == list(location)[: len(here)]:
                return number
    return best
