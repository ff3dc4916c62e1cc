"""The wheel contains every file that the package needs, and an installation without the sources finds them.

`make wheel-test` installs it with its dependencies into an empty environment, which takes minutes.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedmt"

USES_PACKAGE_DATA = """
import fedmt
from fedmt.commands.cli import app
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.data.sources.fashion_mnist import read_fashion_mnist
from fedmt.reports.content import content, render

assert len(read_fashion_mnist("test").images) > 1000
assert "<title>whole</title>" in render(content("whole", "", []))
assert read_experiment(known_experiments()["methods"]).file.rows
print(fedmt.__file__)
app(["--version"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_every_file_is_in_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("fedmt/")}
    here = {p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    expected = {f"fedmt/{p.relative_to(SOURCE).as_posix()}" for p in here}
    experiments = {p for p in (ROOT / "experiments").rglob("*") if p.is_file()}
    expected |= {f"fedmt/experiments/{p.relative_to(ROOT / 'experiments').as_posix()}" for p in experiments}
    assert packed == expected
    assert {"fedmt/py.typed", "fedmt/data/fashion_mnist.npz", "fedmt/reports/page/page.html.jinja"} <= packed


@pytest.mark.slow
def test_it_runs_without_the_sources(wheel, tmp_path):
    """The dependencies come from the running environment, through a line in a .pth file."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [str(python), "-c", USES_PACKAGE_DATA]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, version = done.stdout.split("\n", 1)
    assert Path(place).is_relative_to(packages) and version.startswith("fedmt ")
    done = subprocess.run(
        [home / "bin" / "fedmt", "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout == version
