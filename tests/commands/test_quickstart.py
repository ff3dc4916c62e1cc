"""A small quickstart from end to end: the files that a user finds afterwards, and their content."""

import json

import pytest

from fedmt.commands import quickstart as module
from fedmt.training.progress import make_console


@pytest.fixture
def short(monkeypatch):
    quick = {"rounds": 2, "reference_epochs": 1, "warmup_epochs": 2}
    monkeypatch.setattr(
        module,
        "METHODS",
        {name: (options, {**training, **quick}) for name, (options, training) in module.METHODS.items()},
    )
    real = module.parse_config
    shrunk = {"samples": 20, "per_class": 3, "spaces": {"department": 1, "layer": 1}}

    def parse(raw):
        raw["benchmark"] = {**raw["benchmark"], **shrunk}
        raw["method"] = {**raw["method"], **({} if raw["method"]["name"] == "single" else {"xi": 0.0})}
        return real(raw)

    monkeypatch.setattr(module, "parse_config", parse)


@pytest.mark.slow
def test_files_and_their_contents(short, tmp_path, capsys):
    rows = module.quickstart(tmp_path / "out", 0, make_console())
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == rows
    assert [row["method"] for row in rows] == ["Single", "FedMT (T)", "FedMT (E)"]
    for row in rows:
        assert set(row) == {"method", "fine_accuracy", "coarse_accuracy", "rounds", "seconds"}
        assert set(row["coarse_accuracy"]) == {"department", "layer"}
        assert 0 <= row["fine_accuracy"] <= 1 and row["rounds"] == 2 and row["seconds"] > 0
    page = (tmp_path / "out" / "report.html").read_text()
    begin = page.index('id="data">') + len('id="data">')
    data = json.loads(page[begin : page.index("</script>", begin)])
    assert [run["label"] for run in data["runs"]] == ["Single", "FedMT (T)", "FedMT (E)"]
    estimated = data["runs"][2]
    assert {e["space"] for e in estimated["estimates"]} == {"department", "layer"}
    assert (
        "ankle boot" in estimated["spaces"][0]["classes"] and "footwear" in estimated["spaces"][2]["classes"]
    )
    assert [t["space"] for t in estimated["tests"]] == ["garment", "department", "layer"]
    printed = capsys.readouterr().out
    assert "FedMT (E)" in printed and "report.html" in printed
    # In a second run, the finished runs are kept, and the table is the same.
    assert module.quickstart(tmp_path / "out", 0, make_console()) == rows


def test_the_methods_share_what_they_must():
    """All methods share the data, the network and the views. T and E differ in one option."""
    single, known, estimated = (module.quickstart_config(m, 3) for m in module.METHODS)
    for other in (known, estimated):
        assert (single.benchmark, single.model, single.augmentation) == (
            other.benchmark,
            other.model,
            other.augmentation,
        )
    assert known.training == estimated.training
    assert {k for k in known.method if known.method[k] != estimated.method[k]} == {"correspondence"}
