"""Shell completion answers without torch, and its lists match the registries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedmt
from fedmt.commands import arguments
from fedmt.commands.sweeps.scales import SCALES
from fedmt.methods import METHODS
from fedmt.metrics import METRICS
from fedmt.models.priors import NAMES as PRIORS

ASK = """
import sys
from fedmt.commands.cli import app
try:
    app(prog_name="fedmt")
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def test_the_lists_are_those_of_the_registries():
    assert tuple(METHODS) == arguments.METHODS
    assert tuple(n for n, m in METRICS.items() if m.function is not None) == arguments.METRICS
    assert set(arguments.SCALES) == set(SCALES)
    assert arguments.PRIORS == PRIORS
    assert arguments.one_of(arguments.METHODS)("fed") == ["fedmt", "fedtrans", "fedrep"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedmt re", ["report", "reproduce"]),
        ("fedmt run federation.toml --baseline s", ["single", "semifl"]),
        ("fedmt compare a b --metric au", ["auroc"]),
    ],
)
def test_bash_is_answered_without_torch(line, expected):
    """Asks in the same way as the script of `fedmt --show-completion bash`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(fedmt.__file__).parents[1]),
        "_FEDMT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == expected, done.stderr
    assert done.stderr.split() == ["False"]
