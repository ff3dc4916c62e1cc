"""Where the results of a report come from: dates, versions, digests of the data, configs."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import fedmt
from fedmt.reports.reported import Origin, ReportedRun
from fedmt.runs.folder import RunFolder

NOTICE = "For research use only. Not for decisions about the care of patients."

LONG = 160
"""Characters of a command at the top of the page. The section on the config has all of it."""

DIGITS = 8
"""Length of a digest on the page: enough to see that two differ."""


def origin_of(folder: RunFolder) -> Origin:
    """What the files of a run folder say about where it came from."""
    try:
        digests = json.loads(folder.data_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        digests = {}
    if not isinstance(digests, dict):
        digests = {}
    return Origin(str(folder.config_file), _day(folder), {str(k): str(v) for k, v in digests.items()})


def _day(folder: RunFolder) -> str:
    for path in (folder.summary_file, folder.metrics_file):
        try:
            return datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
        except OSError:
            continue
    return ""


def provenance(
    runs: Sequence[ReportedRun], made: datetime.date | None, command: str = ""
) -> list[dict[str, str]]:
    """Facts by name: those that all runs share, with a word where they differ."""
    facts: list[tuple[str, str]] = []
    by = f"fedmt {fedmt.__version__}"
    facts.append(("Report", f"{made.isoformat()}, {by}" if made is not None else f"live, {by}"))
    dates = sorted({run.origin.written for run in runs if run.origin.written})
    if dates:
        verb = "Trained" if all(run.summary for run in runs) else "Last round"
        facts.append((verb, dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"))
    versions = [_versions(run) for run in runs if run.summary]
    if versions:
        facts.append(("Versions", _shared(versions)))
    digests = [digest(run.origin) for run in runs if run.origin.digests]
    if digests:
        facts.append(("Data", _shared(digests)))
    configs = [run.origin.config for run in runs if run.origin.config]
    if configs:
        one = configs[0] if len(configs) == 1 else f"{len(configs)} configs: {_folder(configs)}"
        facts.append(("Config", one))
    if command:
        facts.append(("Command", command if len(command) <= LONG else f"{command[:LONG]}…"))
    return [{"name": name, "value": value} for name, value in facts]


def digest(origin: Origin) -> str:
    """One short digest of all data of a run. It covers every center and test set."""
    text = json.dumps(dict(sorted(origin.digests.items())))
    return hashlib.blake2b(text.encode(), digest_size=DIGITS // 2).hexdigest()


def _versions(run: ReportedRun) -> str:
    known = (run.summary or {}).get("versions", {})
    device = (run.summary or {}).get("device")
    said = [f"{name} {version}" for name, version in known.items()]
    return ", ".join([*said, f"on {device}"] if device else said)


def _shared(values: Sequence[str]) -> str:
    """The value that all runs share, or the first values and their number."""
    distinct = list(dict.fromkeys(values))
    return (
        distinct[0]
        if len(distinct) == 1
        else f"{len(distinct)} that differ: {', '.join(distinct[:4])}" + (", …" if len(distinct) > 4 else "")
    )


def _folder(configs: Sequence[str]) -> str:
    """The folder that all configs are in, with `*` for the rest."""
    parts = [Path(c).parts for c in configs]
    same = 0
    while all(len(p) > same + 1 and p[same] == parts[0][same] for p in parts):
        same += 1
    return str(Path(*parts[0][:same], "*", "config.toml"))
