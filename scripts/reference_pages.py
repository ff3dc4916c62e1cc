"""Writes docs/reference/config.md and docs/reference/cli.md from the code, so that pages and code agree.

    python scripts/reference_pages.py

The description of a key is the docstring below it in the code. Its default, its type and its choices come
from the schema. A range that a class checks itself is found by trying values. `tests/docs/test_reference.py`
compares the pages with the output of this script. A key without a docstring is an error.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import typer
from pydantic.fields import FieldInfo

from fedmt.aggregation import DEFAULT_GUARD, GUARDS, STRATEGIES
from fedmt.attacks import ATTACKS
from fedmt.backbones import BACKBONES
from fedmt.commands import cli
from fedmt.config.schema import NAMED, Config, DeploymentSpec, ModelSpec
from fedmt.core.errors import FedmtError
from fedmt.core.registry import option_names
from fedmt.data.sources import SOURCES
from fedmt.data.specs import (
    BenchmarkSpec,
    CalibrationSpec,
    CenterSpec,
    ReferenceSpec,
    SourceSpec,
    TestSpec,
)
from fedmt.engines.flower.settings import CenterFile
from fedmt.estimators import ESTIMATORS
from fedmt.inputs import INPUTS
from fedmt.methods import METHODS, Training
from fedmt.privacy import PrivacySpec
from fedmt.tracking.spec import TrackingSpec

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
MADE = (
    "<!-- Made by scripts/reference_pages.py from the code. Change the docstrings there, then run it. -->\n"
)


# -- what the code says of a key -----------------------------------------------------------------------------


@cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstring below each key of a class, including the keys of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("fedmt."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for key, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(key, ast.AnnAssign)
                and isinstance(key.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[key.target.id] = " ".join(inspect.cleandoc(text.value.value).split())
    return found


def description(kind: type, key: str) -> str:
    if key not in docstrings(kind):
        raise SystemExit(f"{kind.__module__}.{kind.__name__}.{key}: write a docstring below this key.")
    return docstrings(kind)[key]


def in_toml(value: Any) -> str:
    """A default, as written in a config."""
    if value is None or value in ({}, (), ""):
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, int | float):
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    if isinstance(value, list | tuple):
        return "all" if len(value) > 3 else "`[" + ", ".join(in_toml(v).strip("`") for v in value) + "]`"
    raise SystemExit(f"a default that this does not know how to write: {value!r}")


def kinds_of(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None and without pydantic's metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from kinds_of(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from kinds_of(part)
    elif annotation is not type(None):
        yield annotation


def choices_of(annotation: Any) -> list[Any]:
    """The values of the Literals in an annotation."""
    return [value for kind in kinds_of(annotation) if get_origin(kind) is Literal for value in get_args(kind)]


def type_in_words(annotation: Any) -> str:
    words: dict[str, None] = {}
    for kind in kinds_of(annotation):
        origin = get_origin(kind) or kind
        if origin is Literal:
            word = ", ".join(in_toml(v) for v in get_args(kind))
        elif origin is bool:
            word = "`true` or `false`"
        elif origin in (int, float):
            word = "whole number" if origin is int else "number"
        elif origin is str:
            word = "text"
        elif origin is Path:
            word = "path"
        elif origin in (list, tuple):
            word = "list"
        else:
            word = "table"
        words[word] = None
    return " or ".join(words)


def range_of(accepts: Callable[[float], bool], whole: bool) -> str:
    """The range of a number, by trial: it starts at 0, 1, 2 or just above 0, and may end anywhere."""
    low = next((v for v in (-1, 0, 1e-6, 1, 2) if not (whole and v == 1e-6) and accepts(v)), -1)
    if low == -1:
        return ""
    least = "above 0" if low == 1e-6 else f"at least {low}"
    if accepts(1e9):
        return least
    inside, outside = float(low), 1e9
    while outside - inside > 1e-9 * outside:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if accepts(middle) else (inside, middle)
    limit = round(outside, 6)
    return f"{least}, {'at most' if accepts(limit) else 'below'} {limit:g}"


def limits_in(annotation: Any) -> Iterator[Any]:
    """The limits given to pydantic anywhere in an annotation."""
    for part in getattr(annotation, "__metadata__", ()):
        yield from part.metadata if isinstance(part, FieldInfo) else [part]
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        for part in get_args(annotation):
            yield from limits_in(part)


VALUES = {"model.freeze": "`true` or `false`"}
"""Values of keys that have a second spelling of the same."""
LIMITS = (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))


def row(table: str, key: str, values: str, default: str, text: str) -> str:
    name = f"{table}.{key}" if table else key
    cells = (f'<a id="{name}"></a>`{key}`', default, values, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


OWN = 'Your own is `"package.module:Name"`.'
HEADER = ["| key | default | values | what it does |", "| --- | --- | --- | --- |"]


def pydantic_rows(kind: Any, table: str, leave_out: Iterable[str] = ()) -> list[str]:
    rows = []
    hints = get_type_hints(kind, include_extras=True)
    for key, field in kind.model_fields.items():
        if key in leave_out:
            continue
        limits = [*limits_in(hints[key]), *field.metadata]
        said = dict.fromkeys(
            f"{word} {getattr(limit, at):,}" for at, word in LIMITS for limit in limits
            if hasattr(limit, at) and getattr(limit, at) < 2**53
        )  # fmt: skip
        values = VALUES.get(f"{table}.{key}") or ", ".join([type_in_words(field.annotation), *said])
        default = "required" if field.is_required() else in_toml(field.get_default(call_default_factory=True))
        rows.append(row(table, key, values, default, description(kind, key)))
    return rows


def dataclass_rows(kind: Any, table: str, anchor: str, names: Iterable[str]) -> list[str]:
    rows = []
    hints = get_type_hints(kind, include_extras=True)
    known: dict[str, Field[Any]] = {f.name: f for f in fields(kind)}
    needed = {f.name: ("center",) for f in known.values() if f.default is f.default_factory is MISSING}
    usual = kind(**needed)
    for name in names:
        values = type_in_words(hints[name])
        if not choices_of(hints[name]) and {int, float} & set(kinds_of(hints[name])):
            whole = float not in set(kinds_of(hints[name]))
            found = range_of(lambda v, name=name, whole=whole: accepted(usual, name, v, whole), whole)
            values += f", {found}" if found else ""
        default = "required" if name in needed else in_toml(getattr(usual, name))
        rows.append(row(anchor, name, values, default, description(kind, name)))
    return rows


def accepted(usual: Any, name: str, value: float, whole: bool) -> bool:
    try:
        replace(usual, **{name: int(value) if whole else value})
    except FedmtError:
        return False
    return True


# -- config.md -----------------------------------------------------------------------------------------------


def table_of(kind: Any, table: str, leave_out: Iterable[str] = ()) -> list[str]:
    if is_dataclass(kind):
        return [*HEADER, *dataclass_rows(kind, table, table, [f.name for f in fields(kind)])]
    return [*HEADER, *pydantic_rows(kind, table, leave_out)]


def named(table: str, registry: Any, default: str, text: str) -> list[str]:
    """A table that selects one thing by its name: the name, and the options of each choice."""
    names = ", ".join(f'`"{name}"`' for name in registry)
    lines = [*HEADER, row(table, "name", names, in_toml(default) if default else "required", text)]
    seen: dict[str, list[str]] = {}
    for name in registry:
        entry = registry[name]
        for option in dataclass_rows(entry, table, f"{table}.{name}", option_names(entry)):
            seen.setdefault(option.split("`", 1)[1], []).append(name)
    only = {}
    for option, names_ in seen.items():
        key = option.split("`")[0]
        only[option] = "" if set(names_) == set(registry) else listed_names(names_)
        anchor = f"{table}.{key}" if not any(f'"{table}.{key}"' in line for line in lines) else ""
        start = f'| <a id="{anchor}"></a>`' if anchor else "| `"
        text_ = option[: -len(" |")] + (f" (Only {only[option]}.)" if only[option] else "") + " |"
        lines.append(start + text_)
    return lines


def listed_names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def top_level() -> list[str]:
    tables = {"method", "aggregation", "training", "augmentation", "privacy", "model", "calibration"}
    tables |= {"benchmark", "reference", "centers", "tests", "attack", "deployment", "tracking"}
    return table_of(Config, "", tables)


def choices(registry: Iterable[str]) -> str:
    return ", ".join(f'`"{name}"`' for name in registry)


def config_page() -> str:
    """The page, from the template `config_page.md` and the tables that come from the code."""
    frame = (Path(__file__).parent / "config_page.md").read_text()
    source = set(SourceSpec.model_fields)
    parts: dict[str, list[str]] = {
        "top": top_level(),
        "source": table_of(SourceSpec, "source"),
        "reference": table_of(ReferenceSpec, "reference", source),
        "centers": table_of(CenterSpec, "centers", source),
        "tests": table_of(TestSpec, "tests", source),
        "benchmark": table_of(BenchmarkSpec, "benchmark"),
        "model": table_of(ModelSpec, "model"),
        "training": table_of(Training, "training"),
        "method": named("method", METHODS, NAMED["method"][0], f"The method. {OWN}"),
        "aggregation": named("aggregation", STRATEGIES, NAMED["aggregation"][0], f"The strategy. {OWN}"),
        "guard": named("aggregation.guard", GUARDS, DEFAULT_GUARD, "The guard against bad centers."),
        "attack": named("attack", ATTACKS, "", "The attack."),
        "privacy": table_of(PrivacySpec, "privacy"),
        "calibration": table_of(CalibrationSpec, "calibration"),
        "deployment": table_of(DeploymentSpec, "deployment"),
        "tracking": table_of(TrackingSpec, "tracking"),
        "center": table_of(CenterFile, "center"),
        "sources": [choices(SOURCES)],
        "backbones": [choices(BACKBONES)],
        "estimators": [choices(ESTIMATORS)],
        "inputs": [choices(INPUTS)],
    }  # fmt: skip
    for name in INPUTS:
        kind = INPUTS[name]
        parts[f"input {name}"] = table_of(kind.options, name)
        parts[f"views {name}"] = table_of(kind.views, "augmentation")
    used = set(re.findall(r"\{(.+?)\}", frame))
    unused = {name for name in parts if name not in used and name != "views tables"}
    if unused or used - set(parts):
        raise SystemExit(f"scripts/config_page.md: without {unused}, and nothing makes {used - set(parts)}.")
    seen: set[str] = set()

    def once(match: re.Match[str]) -> str:
        """Places an anchor where its key first occurs."""
        first, _ = match[1] not in seen, seen.add(match[1])
        return match[0] if first else ""

    text = re.sub(r"\{(.+?)\}", lambda m: "\n".join(parts[m[1]]), frame)
    return MADE + "\n" + re.sub(r'<a id="(.+?)"></a>', once, text)


# -- cli.md --------------------------------------------------------------------------------------------------


def cli_page() -> str:
    app = typer.main.get_command(cli.app)
    assert isinstance(app, click.Group)
    lines = [MADE, (Path(__file__).parent / "cli_page.md").read_text().strip(), ""]
    for name, command in app.commands.items():
        lines += [f"## fedmt {name}", "", as_paragraphs(command.help or ""), "", *usage(name, command), ""]
        if command.epilog:
            lines += [re.sub(r"(?<!`)(fedmt .*)(?<!`)$", r"`\1`", as_paragraphs(command.epilog)), ""]
        for title, kind in (("argument", click.Argument), ("option", click.Option)):
            found = [p for p in command.params if isinstance(p, kind) and not getattr(p, "hidden", False)]
            if found:
                lines += [f"| {title} | default | what it does |", "| --- | --- | --- |"]
                lines += [parameter(p) for p in found] + [""]
    return "\n".join(lines).rstrip() + "\n"


def as_paragraphs(text: str) -> str:
    """A help text without the line breaks of the code."""
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(text.replace("\b", "")).split("\n\n"))


def usage(name: str, command: click.Command) -> list[str]:
    arguments = " ".join(
        p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)
    )
    return ["```text", f"fedmt {name} [OPTIONS] {arguments}".rstrip(), "```"]


def parameter(p: click.Parameter) -> str:
    if isinstance(p, click.Option):
        metavar = (
            ""
            if p.is_flag or p.count
            else " " + (p.metavar or p.type.name.upper().replace("INTEGER RANGE", "N"))
        )
        shown = ", ".join(f"`{name}`" for name in [*p.opts, *p.secondary_opts])
        shown = shown[:-1] + f"{metavar}`" if metavar else shown
    else:
        shown = f"`{p.make_metavar(click.Context(click.Command('')))}`"
    default = p.default
    if isinstance(default, Enum):
        default = default.value
    said = not (default is None or default is False or default in ([], ()) or callable(default))
    told = "required" if p.required else f"`{default}`" if said else ""
    text = " ".join((getattr(p, "help", "") or "").split())
    return "| " + " | ".join(c.replace("|", "\\|").replace("<", "&lt;") for c in (shown, told, text)) + " |"


def main() -> None:
    for name, page in (("config.md", config_page()), ("cli.md", cli_page())):
        (REFERENCE / name).write_text(page)


if __name__ == "__main__":
    main()
