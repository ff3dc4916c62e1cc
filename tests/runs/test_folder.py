"""The run folder: atomic files, verified checkpoints, and errors that say how to continue."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedmt.core.errors import FedmtError
from fedmt.data.member import Member
from fedmt.engines.state import State
from fedmt.runs.checkpoints import dump_state, load_checkpoint
from fedmt.runs.files import write_atomically
from fedmt.runs.folder import RunFolder


def state(round: int) -> State:
    generator = torch.Generator().manual_seed(round)
    return State(
        round,
        {"a.weight": torch.randn(3, 4, generator=generator), "scalar": torch.tensor(1.5)},
        {"a.weight": torch.randn(3, 4, generator=generator)},
        {"Center / with slash": {"correspondence": torch.rand(2, 3)}, "empty": {}},
    )


def folder(path: Path) -> RunFolder:
    return RunFolder.create(path / "run", "seed = 0\n")


def test_a_state_comes_back_to_the_bit(tmp_path):
    run, saved = folder(tmp_path), state(3)
    run.save(saved)
    loaded = run.load()
    assert loaded is not None and loaded.round == 3
    for before, after in ((saved.weights, loaded.weights), (saved.server, loaded.server)):
        assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    name = "Center / with slash"
    assert torch.equal(loaded.kept[name]["correspondence"], saved.kept[name]["correspondence"])


def test_equal_states_are_equal_files():
    """The library itself writes the metadata in a different order each time."""
    more = {f"fedmt.{name}": name for name in "abcdef"}
    assert len({safetensors.torch.save({}, more) for _ in range(20)}) > 1
    one = state(3)
    found = {dump_state(one, more) for _ in range(20)}
    assert len(found) == 1
    (data,) = found
    assert int.from_bytes(data[:8], "little") % 8 == 0
    assert torch.equal(safetensors.torch.load(data)["weights/a.weight"], state(3).weights["a.weight"])


def test_as_many_checkpoints_stay_as_are_asked_for(tmp_path):
    """A run can also go back to an earlier round: delete the checkpoints after it."""
    run = folder(tmp_path)
    for number in range(9):
        run.append_metrics({"round": number})
        run.save(state(number), 5)
    assert [p.stem[-1] for p in sorted(run.checkpoints.iterdir())] == list("45678")
    for number in (6, 7, 8):
        run._checkpoint(number).unlink()
    found = run.load()
    assert found is not None and found.round == 5
    run.rewind(found.round)
    assert [r["round"] for r in run.metrics()] == list(range(6))


def test_only_the_last_two_checkpoints_stay(tmp_path):
    run = folder(tmp_path)
    for number in range(12):
        run.save(state(number))
    names = sorted(p.name for p in run.checkpoints.iterdir())
    assert names == ["round-000010.safetensors", "round-000011.safetensors"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_offered(tmp_path, damage):
    run = folder(tmp_path)
    run.save(state(4))
    run.save(state(5))
    path = run.checkpoints / "round-000005.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-3] ^= 1
    path.write_bytes({"truncate": data[:-7], "flip": data, "empty": b"", "garbage": b"x" * 99}[damage])
    with pytest.raises(FedmtError, match=r"round-000005.*damaged.*round-000004.*intact.*delete") as error:
        run.load()
    assert str(path) in str(error.value)
    path.unlink()
    loaded = run.load()
    assert loaded is not None and loaded.round == 4


def test_all_checkpoints_damaged(tmp_path):
    run = folder(tmp_path)
    for number in (1, 2):
        run.save(state(number))
        (run.checkpoints / f"round-{number:06d}.safetensors").write_bytes(b"")
    with pytest.raises(FedmtError, match="start a new run"):
        run.load()


def test_another_run_in_the_way(tmp_path):
    folder(tmp_path)
    with pytest.raises(FedmtError, match=r"already holds a run.*--resume.*--out"):
        folder(tmp_path)
    with pytest.raises(FedmtError, match=r"another run: its config differs in seed \(0 there, 1 here\)"):
        RunFolder.resume(tmp_path / "run", "seed = 1\n")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").touch()
    for opening in (RunFolder.create, RunFolder.resume):
        with pytest.raises(FedmtError, match="papers"):
            opening(tmp_path / "papers", "seed = 0\n")
    assert [p.name for p in (tmp_path / "papers").iterdir()] == ["thesis.tex"]


def test_a_run_goes_on_with_another_guard(tmp_path):
    """Nothing else may differ."""
    run = folder(tmp_path)
    other = 'seed = 0\n[aggregation.guard]\nname = "median"\nmix = 0\n'
    assert RunFolder.resume(run.path, other).config_file.read_text() == other
    with pytest.raises(FedmtError, match=r"its config differs in aggregation.*seed \(0 there, 1 here\)"):
        RunFolder.resume(run.path, "seed = 1\n")


def test_two_processes_in_one_folder(tmp_path):
    run = folder(tmp_path)
    with run.locked(), pytest.raises(FedmtError, match="another process"), RunFolder(run.path).locked():
        pass
    with RunFolder(run.path).locked():
        pass


def test_a_half_written_line_is_forgotten_and_later_rounds_rewound(tmp_path):
    run = folder(tmp_path)
    for number in range(4):
        run.append_metrics({"round": number, "accuracy": {"fine": 0.5}})
    with run.metrics_file.open("a") as file:
        file.write('{"round": 4, "accu')
    assert [r["round"] for r in run.metrics()] == [0, 1, 2, 3]
    run.rewind(2)
    assert [json.loads(line)["round"] for line in run.metrics_file.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "what"),
    [(b"\xff\xfe{}", "not text in UTF-8"), (b"{,}", "not valid JSON"), (b"[1]", "no record of a round")],
)
def test_a_line_that_no_run_wrote(tmp_path, line, what):
    run = folder(tmp_path)
    run.append_metrics({"round": 0})
    with run.metrics_file.open("ab") as file:
        file.write(line + b"\n")
    if what == "not text in UTF-8":  # including the last line, since it is complete
        with pytest.raises(FedmtError, match=r"metrics.jsonl, line 2: not text in UTF-8.$"):
            run.metrics()
    run.append_metrics({"round": 1})
    with pytest.raises(FedmtError, match=rf"metrics.jsonl, line 2: {what}.$"):
        run.metrics()


def test_a_config_and_data_that_no_run_wrote(tmp_path):
    run = folder(tmp_path)
    run.data_file.write_text("[1, 2]")
    with pytest.raises(FedmtError, match=r"data.json: this is not a table of digests"):
        run.keep_data({"Berlin": {"values": torch.zeros(2)}})
    run.config_file.write_bytes(b"seed = \xff\n")
    with pytest.raises(FedmtError, match=r"config.toml: this is not UTF-8 text"):
        RunFolder.resume(run.path, "seed = 0\n")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """If the write fails as on a full disk, the old file stays whole, and no part of the new one is left."""
    target = tmp_path / "summary.json"
    write_atomically(target, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedmt.runs.files.os.fsync", full)
    with pytest.raises(FedmtError, match=r"summary.json: the disk is full.*--resume"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_checkpoint_of_something_else(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "round-000001.safetensors")
    with pytest.raises(FedmtError, match="damaged"):
        load_checkpoint(tmp_path / "round-000001.safetensors")


def test_a_flower_run_of_an_earlier_version_goes_on(tmp_path, make_federation) -> None:
    """It wrote a digest of a blank image for each remote center, under the center's name."""
    federation = make_federation()
    members = tuple(Member(c.name, c.space, c.correspondence) for c in federation.centers)
    there = replace(federation, centers=(), elsewhere=members)
    run = RunFolder.create(tmp_path / "run", "")
    run.keep_data(there.contents())
    now = json.loads(run.data_file.read_text())
    assert "elsewhere/center-1" in now and "center-1" not in now
    before = {k: v for k, v in now.items() if not k.startswith("elsewhere/")} | {"center-1": "0"}
    run.data_file.write_text(json.dumps(before))
    run.keep_data(there.contents())
    run.data_file.write_text(json.dumps(now))
    other = replace(members[0], correspondence=None)
    with pytest.raises(FedmtError, match=r"began with other data .* 'elsewhere/center-1'"):
        run.keep_data(replace(there, elsewhere=(other, *members[1:])).contents())


def test_a_pipe_or_a_link_is_not_replaced(tmp_path):
    """Else root would replace /dev/null by a file."""
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"data")
    assert pipe.is_fifo() and os.read(end, 9) == b"data"
    os.close(end)
    link.symlink_to(file)
    write_atomically(link, b"data")
    assert link.is_symlink() and file.read_bytes() == b"data"
    with pytest.raises(FedmtError, match=r"is a folder. Name a file in it"):
        write_atomically(tmp_path, b"data")
