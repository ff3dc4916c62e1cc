"""`import fedmt` and every help text answer at once, without importing torch or other large libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fedmt
from fedmt.commands import cli

LARGE = {"torch", "torchvision", "numpy", "pydantic", "matplotlib", "PIL", "flwr"}
COMMANDS = list(typer.main.get_command(cli.app).commands)
MAIN = """
import sys
from fedmt.commands.cli import main
try:
    main()
finally:
    print("modules:", *sys.modules)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs in a new process, without the variables that fedmt sets."""
    own = ("GOMP_SPINCOUNT", "CUDA_DEVICE_MAX_CONNECTIONS")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    environment["PYTHONPATH"] = str(Path(fedmt.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True
    )


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The modules that a program lists when it ends."""
    return set(done.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), *((c, "--help") for c in COMMANDS)], ids=" ".join
)
def test_help_imports_no_large_library(arguments: tuple[str, ...]) -> None:
    done = run(MAIN, *arguments)
    assert done.returncode == 0, done.stderr
    assert "fedmt" in done.stdout.partition("modules:")[0]  # it did print an answer
    assert "typer" in imported(done) and not imported(done) & LARGE


def test_a_mistyped_command_is_answered_without_torch() -> None:
    done = run(MAIN, "chek")
    assert done.returncode == 2 and "Did you mean 'check'?" in done.stderr
    assert not imported(done) & LARGE


def test_import_fedmt_sets_the_environment_before_torch() -> None:
    done = run(
        "import os, sys, fedmt\n"
        "print(os.environ['GOMP_SPINCOUNT'], os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])\n"
        "print('modules:', *sys.modules)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10000 32\n")
    assert not imported(done) & LARGE


@pytest.mark.slow
def test_every_public_name_is_there() -> None:
    done = run(
        "from fedmt import *\n"
        "import fedmt\n"
        "print(all(globals()[name] is getattr(fedmt, name) for name in fedmt.__all__))"
    )
    assert done.stdout == "True\n", done.stderr
    assert set(fedmt.__all__) <= set(dir(fedmt))
    with pytest.raises(AttributeError, match="no attribute 'Centre'"):
        _ = fedmt.Centre  # type: ignore[attr-defined]
