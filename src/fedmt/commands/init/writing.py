"""Writes a plan as a commented federation.toml. Comments give the reason for each guess and mark what the
user must fill in."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmt.commands.init.doubts import all_doubts
from fedmt.commands.init.found import Found, LeftOut, is_utf8, label_columns, printable
from fedmt.commands.init.proposing import Entry, Member, Plan, Proposal, why_left_out
from fedmt.commands.init.texts import are_texts, text_table
from fedmt.core.errors import FedmtError, listed
from fedmt.inputs.images.looking import are_small, images_table
from fedmt.inputs.tables import Statistics
from fedmt.inputs.tabular import read_frame


def config_text(plan: Plan, folder: Path, left: Sequence[LeftOut] = ()) -> str:
    """The text of the file. Paths are relative to `folder`, where the file will be. left: what was left
    out."""
    parts = [
        _head(plan),
        *(["\n".join(_comment(str(one)) for one in left)] if left else []),
        _spaces(plan),
        *(_correspondence(plan, space, p) for space, p in plan.correspondences.items()),
        _reference(plan, folder),
        *(_center(member, plan.word, folder) for member in plan.centers),
        *_tests(plan, folder),
        _input(plan),
        _training(plan),
    ]
    return "\n\n".join(parts) + "\n"


def _head(plan: Plan) -> str:
    inputs = {"texts": "text", "rows": "tables", "vectors": "vectors"}
    kind = f'input = "{inputs[plan.word]}"\n' if plan.word in inputs else ""
    return (
        "# Written by `fedmt init` from what it found. Read the comments: they explain each guess.\n# "
        f"`fedmt check` on this file loads everything and trains nothing; `fedmt run` trains.\n{kind}seed = "
        f"0\nwanted = {_quoted(plan.wanted)}   # the label space that the model predicts in"
    )


def _spaces(plan: Plan) -> str:
    lines = [
        "# The names of the classes, as they are written in the data. Centers with the same names share a "
        "space.",
        *(_comment(f"{note}.") for note in all_doubts(plan.spaces)),
        "[spaces]",
    ]
    for name, classes in plan.spaces.items():
        lines.append(f"{_key(name)} = [{', '.join(map(_quoted, classes))}]")
    return "\n".join(lines)


def _correspondence(plan: Plan, space: str, proposal: Proposal) -> str:
    """How the wanted classes correspond to those of `space`."""
    found = [e for e in proposal.entries.values() if e is not None]
    if not found:
        return (
            _comment(
                f"How '{space}' corresponds to '{plan.wanted}' will be estimated, because no names are alike "
                f"and no center has both labels. If you know it, name the class of '{space}' that each "
                "wanted class belongs to (or give shares: { a = 0.9, b = 0.1 }): "
                f"{listed(plan.spaces[space])}."
            )
            + "\n"
            + _table(plan, space, proposal, "# ")
        )
    ways = {e.why for e in found}
    reason = " and ".join(
        text
        for why, text in (
            ("counted", f"counted where {proposal.source} has both labels"),
            ("equal", "from equal names"),
            ("similar", "from similar names"),
        )
        if why in ways
    )
    if proposal.certain:
        return (
            _comment(f"'{space}': {reason}. Check it. Without this table, the correspondence is estimated.")
            + "\n"
            + _table(plan, space, proposal, "")
        )
    why = proposal.problem or "similar names may mislead"
    return (
        _comment(
            f"'{space}', a proposal {reason}. It is not used because {why}, so the correspondence is "
            "estimated. To use the proposal, check it, fill in what is missing and remove the #."
        )
        + "\n"
        + _table(plan, space, proposal, "# ")
    )


def _table(plan: Plan, space: str, proposal: Proposal, prefix: str) -> str:
    lines = [f"[correspondences.{_key(space)}]"]
    for name in plan.spaces[plan.wanted]:
        entry = proposal.entries[name]
        lines.append(f"{_key(name)} = {_entry(entry)}" + ("   # similar name" if _similar(entry) else ""))
    return "\n".join(prefix + line for line in lines)


def _similar(entry: Entry | None) -> bool:
    return entry is not None and entry.why == "similar"


def _entry(entry: Entry | None) -> str:
    if entry is None:
        return '"?"'
    if len(entry.shares) == 1:
        return _quoted(next(iter(entry.shares)))
    return "{ " + ", ".join(f"{_key(c)} = {share:.6g}" for c, share in entry.shares.items()) + " }"


def _reference(plan: Plan, folder: Path) -> str:
    found = plan.reference.found
    others = [c for c in label_columns(found) if c != plan.reference.column]
    lines = [
        _comment(
            f"The reference center ({plan.reason}): {found.images} {plan.word} labeled in '{plan.wanted}'."
        ),
        "[reference]",
        f"name = {_quoted(found.name)}",
        *_source(plan.reference, folder),
    ]
    if others:
        lines.append(
            _comment(f"Its table also has {listed(others)}, so label_column could be another column.")
        )
    return "\n".join(lines)


def _center(member: Member, word: str, folder: Path) -> str:
    found = member.found
    lines = [
        "[[centers]]",
        f"name = {_quoted(found.name)}   # {found.images} {word}",
        *_source(member, folder),
    ]
    if member.space is not None:
        lines.append(f"space = {_quoted(member.space)}")
    else:
        lines.append("# space = …   # no labels were found, so this is a center without labels")
    return "\n".join(lines)


def _tests(plan: Plan, folder: Path) -> Iterable[str]:
    for member in plan.tests:
        if member.space is None:
            yield _comment(f"{member.found.path.name}: {why_left_out(member.found, plan.spaces)}.")
            continue
        lines = ["[[tests]]", *_source(member, folder)]
        site = member.found.site_column
        # What the centers' tables have as a feature must stay one at the test set.
        features = {title for m in (plan.reference, *plan.centers) for title in m.found.features}
        if site is not None and site not in features | {member.column}:
            lines.append(f"site_column = {_quoted(site)}   # the report also shows each site by itself")
        if member.space != plan.wanted:
            lines.append(f"space = {_quoted(member.space)}")
        yield "\n".join(lines)
    if not any(m.space is not None for m in plan.tests):
        sources = {
            "rows": ("table", "test.csv"),
            "texts": ("text", "test.csv"),
            "vectors": ("npz", "test.npz"),
            "images": ("folder", "test/"),
        }
        source, path = sources[plan.word]
        yield (
            "# There is no test set, and without one no accuracy is reported. To add one, set some "
            f"{plan.word}\n# aside that no center trains on and label them in the wanted space:\n# "
            f'[[tests]]\n# source = "{source}"\n# path = "{path}"'
        )


def _source(member: Member, folder: Path) -> list[str]:
    found = member.found
    lines = [f'source = "{found.source}"', f"path = {_quoted(_relative(found.path, folder))}"]
    if found.source == "table" and member.column is not None:
        lines.append(f"label_column = {_quoted(member.column)}")
    if found.text_column is not None:
        lines.append(f"text_column = {_quoted(found.text_column)}")
        if member.column is not None:
            lines.append(f"label_column = {_quoted(member.column)}")
    if found.source == "manifest":
        lines.append(f"image_column = {_quoted(found.image_column)}")
        if member.column is not None:
            lines.append(f"label_column = {_quoted(member.column)}")
        if found.root is not None:
            lines.append(f"root = {_quoted(_relative(found.root, folder))}")
    if found.group_column is not None:
        lines.append(f"group_column = {_quoted(found.group_column)}   # never separated by a split")
    return lines + [_comment(f"{note}.") for note in found.notes]


def _tables(plan: Plan) -> str:
    members = (plan.reference, *plan.centers)
    said = {name for m in members for name in (m.column, m.found.group_column)}  # in the config itself
    ignored = [word for name in sorted(_aside(plan) - said) for word in ("--ignore", name)]
    again = shlex.join(["fedmt", "schema", "federation.toml", *ignored, "--force"])
    return (
        "# How rows become vectors: numbers, categories and missing values, from statistics of all centers.\n"
        + _comment(f"To make it again, run: {again}")
        + '\n[tables]\nschema = "schema.toml"'
    )


def statistics_of(plan: Plan) -> list[Statistics]:
    """The labels and identifiers of each center's table. A column that may be one of these anywhere is a
    feature nowhere."""
    aside = _aside(plan)
    members = (plan.reference, *plan.centers)
    return [Statistics.of(read_frame(m.found.path), m.found.name, aside) for m in members]


def _aside(plan: Plan) -> set[str]:
    members = (plan.reference, *plan.centers)
    return {name for m in members for name in (*m.found.columns, *m.found.identifiers)}


def _all(plan: Plan) -> list[Found]:
    return [m.found for m in (plan.reference, *plan.centers, *plan.tests)]


def _input(plan: Plan) -> str:
    """The config's table for the input."""
    if plan.is_table:
        return _tables(plan)
    found = _all(plan)
    if plan.word == "vectors":
        array = found[0].array or "vectors"
        return f"# The name of the vectors in each archive.\n[vectors]\narray = {_quoted(array)}"
    return text_table(found) if are_texts(found) else images_table([f.seen for f in found])


def _training(plan: Plan) -> str:
    small = plan.word == "images" and are_small([m.found.seen for m in (plan.reference, *plan.centers)])
    many = plan.reference.found.images >= 1000
    calibration = (
        f"# A tenth of the reference center's {plan.word} is held out from training; the model's "
        "probabilities are\n# calibrated on it. Remove this table to train on all of them.\n[calibration]\n"
        "share = 0.1"
        if many
        else f"# If the reference center has 1,000 {plan.word} or more, hold a share out from training\n"
        "# to calibrate the model's probabilities:\n"
        "# [calibration]\n# share = 0.1"
    )
    backbone = "mlp" if plan.word != "images" else "small_cnn" if small else "resnet18"
    return f'[model]\nbackbone = "{backbone}"\n\n[training]\nrounds = 50\n\n{calibration}'


def _relative(path: Path, folder: Path) -> str:
    """A path relative to the config, unless it would lead far up. Then it is absolute."""
    path, folder = path.resolve(), folder.resolve()
    short = os.path.relpath(path, folder) if path.anchor == folder.anchor else str(path)
    written = Path(short).as_posix() if short.count("..") <= 1 else path.as_posix()
    if not is_utf8(written):
        raise FedmtError(
            f"{printable(written)}: this path is not valid UTF-8, so no config can name it. Rename its "
            "folders."
        )
    return written


def _quoted(text: str) -> str:
    """A TOML string. JSON's escapes are valid in TOML too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(text: str) -> str:
    return text if text.isascii() and text.replace("_", "").replace("-", "").isalnum() else _quoted(text)


def _comment(text: str) -> str:
    """Wraps the text into lines that begin with #, whatever characters a name contains."""
    words, lines, line = text.split(), [], "#"
    for word in words:
        if len(line) + 1 + len(word) > 108 and line != "#":
            lines.append(line)
            line = "#"
        line += f" {word}"
    return "\n".join([*lines, line])
