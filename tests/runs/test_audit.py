"""The audit log: a changed, removed or moved entry is detected, and its line is named."""

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmt.core.errors import FedmtError
from fedmt.runs.audit import Audit, hash_of, verify


@pytest.fixture
def log(tmp_path: Path) -> Path:
    audit = Audit(tmp_path / "state" / "audit.jsonl")
    for number in range(1, 6):
        audit.write("asked", center="Berlin", round=number, parts={"update": {"bytes": 10 * number}})
    return audit.path


def changed(path: Path, change: Callable[[list[str]], list[str]]) -> list[str]:
    lines = change(path.read_text().splitlines())
    path.write_text("".join(line + "\n" for line in lines))
    return verify(path)[1]


def test_an_intact_log(log: Path) -> None:
    entries, problems = verify(log)
    assert problems == [] and [e["number"] for e in entries] == [1, 2, 3, 4, 5]
    assert [e["before"] for e in entries[1:]] == [e["hash"] for e in entries[:-1]]


@pytest.mark.parametrize("place", [1, 3, 5])
def test_a_changed_entry(log: Path, place: int) -> None:
    def change(lines: list[str]) -> list[str]:
        lines[place - 1] = lines[place - 1].replace('"Berlin"', '"Bergen"')
        return lines

    assert changed(log, change) == [f"line {place}: entry {place} was changed after it was written."]


def test_a_changed_entry_with_a_hash_that_fits(log: Path) -> None:
    """A changed entry with a recomputed hash breaks the chain at the next entry."""

    def change(lines: list[str]) -> list[str]:
        entry = json.loads(lines[2])
        entry["center"] = "Bergen"
        entry["hash"] = hash_of(entry)
        lines[2] = json.dumps(entry)
        return lines

    assert changed(log, change) == ["line 4: entry 4 does not continue entry 3, which was replaced."]


def test_a_removed_entry(log: Path) -> None:
    problems = changed(log, lambda lines: lines[:2] + lines[3:])
    assert problems == ["line 3: entry 4 follows entry 2: entry 3 is missing here, removed or moved."]


def test_removed_from_the_beginning(log: Path) -> None:
    problems = changed(log, lambda lines: lines[2:])
    assert problems == ["line 1: entry 3 follows entry 0: entries 1 to 2 are missing here, removed or moved."]


def test_reordered_entries(log: Path) -> None:
    problems = changed(log, lambda lines: [lines[0], lines[2], lines[1], *lines[3:]])
    assert len(problems) == 3 and problems[0].startswith("line 2: entry 3 follows entry 1")
    assert problems[1] == "line 3: entry 2 comes after entry 3: the lines were reordered, or copied."


def test_a_line_that_is_no_entry(log: Path) -> None:
    problems = changed(log, lambda lines: [*lines[:2], "[" * 100_000, *lines[3:]])
    assert problems == ["line 3: this is not an entry of an audit log, so it was changed."]


def test_a_kill_while_writing(log: Path) -> None:
    with log.open("a") as file:
        file.write('{"number": 6, "ti')
    assert "line 6: this line is not finished" in verify(log)[1][0]
    Audit(log).write("asked", round=6)
    entries, problems = verify(log)
    assert problems == [] and [e["event"] for e in entries[-2:]] == ["cut short", "asked"]


def test_a_last_line_that_is_not_ours_is_not_built_upon(log: Path) -> None:
    with log.open("a") as file:
        file.write("hello\n")
    with pytest.raises(FedmtError, match=r"its last line is not an entry of an audit log"):
        Audit(log).write("asked")


def _write(path: Path) -> None:
    for _ in range(10):
        Audit(path).write("asked", names="x" * 5000)


def test_several_processes_write_one_chain(log: Path) -> None:
    """This includes entries that are longer than what is first read from the end."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(log,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    Audit(log).write("large", names="x" * 100_000)
    Audit(log).write("after")
    entries, problems = verify(log)
    assert problems == [] and len(entries) == 37


def test_the_command(log: Path, command) -> None:
    status, said, _ = command("audit", log)
    last = verify(log)[0][-1]["hash"]
    assert status == 0 and "The chain is intact: 5 entries." in said and last in said
    assert "Berlin" in said and "update (50 bytes" in said
    assert command("audit", log, "--expect", last)[0] == 0
    # A chain with its end cut off is intact. Only a hash that was kept elsewhere shows the cut.
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:3]))
    assert command("audit", log)[0] == 0
    status, said, _ = command("audit", log, "--expect", last)
    assert status == 1 and f"no entry has the hash {last}" in said
    log.write_text(log.read_text().replace("Berlin", "Bergen\\u001b[2J", 1))
    status, said, _ = command("audit", log)
    assert status == 1 and "line 1: entry 1 was changed" in said and "\x1b" not in said
    assert command("audit", log.parent / "none.jsonl")[0] == 2
