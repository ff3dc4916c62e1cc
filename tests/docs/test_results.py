"""The runs in docs/results/data: their configs are still configs, and the pages say what they measured."""

import json
from pathlib import Path

import pytest

from fedmt.config import load_config

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CONFIGS = sorted((RESULTS / "data").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_reported_run_can_be_run_again(path):
    config = load_config(path)
    lines = path.with_suffix(".jsonl").read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in lines]
    assert rounds == list(range(len(rounds)))
    stopped = path.stem.endswith("-stopped")
    assert (rounds[-1] < config.training.rounds) if stopped else (rounds[-1] == config.training.rounds)


@pytest.mark.parametrize("run", ["t-n5-seed0", "e-n5-seed0", "t-n25-seed0", "e-n25-seed0"])
def test_the_table_of_cifar100_has_the_last_rounds(run):
    last = json.loads((RESULTS / "data" / "cifar100" / f"{run}.jsonl").read_text().splitlines()[-1])
    (row,) = [
        line
        for line in (RESULTS / "cifar100.md").read_text().splitlines()
        if line.startswith(f"| n = {run.split('-')[1][1:]} | ")
    ]
    assert f"{100 * last['accuracy']['fine']:.2f}" in row.replace("*", "")
