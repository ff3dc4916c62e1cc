"""Follows docs/start/tutorial.md as written: runs its blocks in order, in an empty folder.

Each line of a `text` block must be printed by the block before it, apart from its numbers. The accuracies
must be close to those on the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "start" / "tutorial.md"
BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,.]*")
NEAR = 0.06
"""How far an accuracy may be from the page's: versions round differently, and training amplifies it."""


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def execute(language: str, code: str, folder: Path, warm: Path) -> str:
    """What a block prints. `fedmt` belongs to this Python, which has already done its imports."""
    path = os.pathsep.join([str(warm), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    shell = ["bash", "-euo", "pipefail", "-c"]
    command = [*([str(warm / "python-c")] if language == "python" else shell), code]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}"
    return done.stdout


def plain(line: str) -> str:
    """A line without its numbers and without the column widths that depend on them."""
    return " ".join(NUMBER.sub("#", line).split())


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> tuple[Path, list[tuple[str, str]]]:
    """The folder in which the page was followed, and each `text` block with what was printed in its place."""
    folder = tmp_path_factory.mktemp("tutorial")
    printed, promised = "", []
    for language, code in blocks():
        if language == "text":
            promised.append((code, printed))
        else:
            printed = execute(language, code, folder, warm)
    return folder, promised


def test_the_page_prints_what_it_says(followed):
    _, promised = followed
    assert len(promised) == sum(language == "text" for language, _ in blocks()) > 8
    for expected, printed in promised:
        lines = {plain(line) for line in printed.splitlines()}
        missing = [line for line in expected.splitlines() if plain(line) not in lines]
        assert not missing, f"not printed: {missing}\nprinted:\n{printed}"


def test_it_reaches_what_it_says(followed):
    folder, _ = followed
    table = re.findall(r"^\| (.*?) \| ([\d.]+)% \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    said = {name: float(value) / 100 for name, value in table}
    runs = {"alone": "reference center alone"}
    runs |= {r: f"with the partner, correspondence {r}" for r in ("estimated", "given")}
    found = {
        name: json.loads((folder / "runs" / name / "summary.json").read_text())["accuracy"]["wanted"]
        for name in runs
    }
    assert found == pytest.approx({name: said[line] for name, line in runs.items()}, abs=NEAR)
    assert found["given"] > found["alone"] + 0.04


def test_the_files_it_speaks_of(followed):
    folder, _ = followed
    assert len(list((folder / "data" / "partner").rglob("*.png"))) == 1250
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Two hospitals" in page and "ankle boot" in page
    rows = (folder / "partner.csv").read_text().splitlines()
    assert len(rows) == 51 and sum(",bottoms," in row for row in rows) > 40
