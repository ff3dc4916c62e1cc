"""Open sets: known names, a user's own names, and each mistake named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedmt
from fedmt.aggregation import STRATEGIES
from fedmt.config import dump_config, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry, subclass_of
from fedmt.methods import METHODS, FedMT
from fedmt.runs.folder import RunFolder
from fedmt.training.run import Silent, Stopped, run

OWN = """
from __future__ import annotations

from dataclasses import dataclass

from fedmt.aggregation import Strategy, Weights
from fedmt.methods import CenterRound, FedMT, Method

@dataclass(frozen=True)
class Cautious(FedMT):
    '''FedMT that leaves the centers out of the first rounds.'''

    patience: int = 1
    presets = {**FedMT.presets, "patient": {"method": {"patience": 2}, "training": {"rounds": 7}}}

    def center_round(self, center, predictions, kept, round, rng) -> CenterRound:
        if round <= self.patience:
            return CenterRound(None, reason=f"{self.name} waits")
        return super().center_round(center, predictions, kept, round, rng)

@dataclass(frozen=True)
class Signs(Strategy):
    '''Every weight moves by the same step.'''

    rate: float = 1e-3
    scale: float = 1.0

    def direction(self, update: Weights, server: Weights, participation) -> tuple[Weights, Weights]:
        return {k: self.scale * v.sign() for k, v in update.items()}, server

class Lazy(Method):
    pass

class Plain(Lazy):
    def center_round(self, center, predictions, kept, round, rng) -> CenterRound:
        return self.supervised_round(center, round, rng)

SIZE = 3
"""

CONFIG = """
seed = 3
device = "cpu"
[method]
name = "fedmt_test_own:Cautious"
xi = 0.3
[aggregation]
name = "fedmt_test_own:Signs"
scale = 2.0
[training]
rounds = 3
batch_size = 10
reference_epochs = 1
reference_batch_size = 10
warmup_epochs = 3
[model]
backbone = "small_cnn"
[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 2 }
per_class = 2
samples = 20
test_samples = 50
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's own module, in which the command runs."""
    (tmp_path / "fedmt_test_own.py").write_text(OWN)
    (tmp_path / "federation.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("fedmt_test_own", None)


# -- the registry -----------------------------------------------------------------------------------


def test_it_is_a_mapping_of_what_is_known() -> None:
    assert list(METHODS) == ["fedmt", "single", "fedtrans", "fedrep", "semifl"]
    assert METHODS["fedmt"] is METHODS.find("fedmt", "method.name") is FedMT
    assert METHODS.name_of(FedMT) == "fedmt"
    assert "fedmtt" not in METHODS and METHODS.get("fedmtt") is None
    with pytest.raises(KeyError):
        METHODS["fedmtt"]


def test_what_is_given_by_its_place_is_imported_when_it_is_asked_for(folder: Path) -> None:
    entries: Registry[object] = Registry("number", {"three": "fedmt_test_own:SIZE", "four": 4})
    assert list(entries) == ["three", "four"] and "three" in entries
    assert "fedmt_test_own" not in sys.modules
    assert entries["three"] == entries.find("three", "size") == 3 and entries["four"] == 4


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedmtt", "no method 'fedmtt'. Did you mean 'fedmt'? Known: 'fedmt', 'single',"),
        (3, "no method 3. Known: 'fedmt', 'single'"),
        (None, "or your own as 'package.module:Name'."),
        ("fedmt_test_own.py:Cautious:", "expected 'package.module:Name', for example 'my_module:Name'"),
        ("fedmt_test_absent:Cautious", "no module 'fedmt_test_absent', neither installed nor in"),
        ("fedmt_test_own:Cautios", "has no 'Cautios'. Did you mean 'Cautious'?"),
        ("fedmt_test_own:SIZE", "'SIZE' is of type int, expected a subclass of fedmt.methods.Method."),
        ("fedmt_test_own:Signs", "'Signs' is not a subclass of fedmt.methods.Method."),
        ("fedmt_test_own:Lazy", "'Lazy' does not define 'center_round'"),
    ],
)
def test_each_mistake_is_named(folder: Path, name: object, said: str) -> None:
    with pytest.raises(FedmtError) as caught:
        METHODS.find(name, "method.name")
    assert str(caught.value).startswith("method.name: ") and said in str(caught.value)


def test_a_complaint_names_where_the_base_class_is() -> None:
    assert "fedmt.aggregation.Strategy" in str(subclass_of(int, "fedmt.aggregation.Strategy")("text"))


# -- a method and a strategy of a user's own --------------------------------------------------------------


def test_they_are_run_dumped_resumed_and_loaded(folder: Path) -> None:
    """The name stays as written, since it is looked up again."""
    config = load_config("federation.toml")
    run(config, "whole")

    class UntilRoundOne(Silent):
        def round(self, record: dict[str, object]) -> None:
            if record["round"] == 1:
                raise Stopped

    with pytest.raises(Stopped):
        run(config, "stopped", observer=UntilRoundOne())
    sys.modules.pop("fedmt_test_own")  # as in a new process
    again = load_config("stopped/config.toml")
    assert dump_config(again) == dump_config(config)
    for part in ('name = "fedmt_test_own:Cautious"', 'name = "fedmt_test_own:Signs"', "patience = 1"):
        assert part in dump_config(config)
    run(load_config("federation.toml"), "stopped", resume=True)
    one, two = RunFolder(folder / "whole").load(), RunFolder(folder / "stopped").load()
    assert one is not None and two is not None
    assert all(torch.equal(one.weights[k], two.weights[k]) for k in one.weights)
    metrics = RunFolder(folder / "whole").metrics()
    assert metrics[1]["centers"]["center-1"]["abstained"] == "fedmt_test_own:Cautious waits"
    assert "abstained" not in metrics[2]["centers"]["center-1"]
    # Only the user can allow this code to be imported.
    sys.modules.pop("fedmt_test_own")
    with pytest.raises(FedmtError) as refused:
        fedmt.load("whole", "cpu")
    said = "model.json: the model names code that does not come with fedmt (method.name 'fedmt_test_own:"
    assert said in str(refused.value) and "--allow fedmt_test_own:Cautious" in str(refused.value)
    assert "fedmt_test_own" not in sys.modules
    model = fedmt.load("whole", "cpu", allow=["fedmt_test_own:Cautious"])
    assert model.description.method["name"] == "fedmt_test_own:Cautious"
    assert model.description.method["patience"] == 1 and model.spaces == ("garment", "department")


def test_a_model_whose_method_is_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(load_config("federation.toml", ["training.rounds=1"]), "run")
    sys.modules.pop("fedmt_test_own")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    with pytest.raises(FedmtError, match=r"model.json: method.name: .*no module 'fedmt_test_own'"):
        fedmt.load(folder / "run", "cpu", allow=["fedmt_test_own:Cautious"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("method.patiense=2", "unknown key 'method.patiense'. Did you mean 'patience'?"),
        ("method.patience=often", "method.patience: input should be a valid integer"),
        ("aggregation.scale=much", "aggregation.scale: input should be a valid number"),
        ("aggregation.momentum=0.5", "unknown key 'aggregation.momentum'. Known: 'rate', 'scale'."),
        ("aggregation.name=fedmt_test_own:Sings", "aggregation.name: strategy 'fedmt_test_own:Sings': "),
        (
            "method.estimator=EM",
            "method.estimator: no estimator 'EM'. Known: 'counting', 'em', 'learnable', or",
        ),
        ("method.estimator=fedmt_test_own:Signs", "'Signs' is not a subclass of fedmt.estimators.Estimator."),
        ("method.estimator=3", "method.estimator: input should be text"),
        ("method.training=1", "method.training: this belongs in its own table, [training]"),
        ("aggregation.training=1", "aggregation.training: this belongs in its own table, [training]"),
    ],
)
def test_mistakes_in_their_options(folder: Path, given: str, said: str) -> None:
    with pytest.raises(FedmtError) as caught:
        load_config("federation.toml", [given])
    assert str(caught.value).startswith(f"--set {given.split('=')[0]}: ") and said in str(caught.value)


def test_their_presets(folder: Path) -> None:
    """A preset of the method itself, and one that it inherits. The config takes precedence."""
    own = load_config("federation.toml", ["preset=patient"])
    assert own.method["patience"] == 2 and own.training.rounds == 3
    paper = load_config("federation.toml", ["preset=paper"])
    assert paper.method["estimator"] == "counting" and paper.training.clip == 1.0
    assert "momentum" not in paper.aggregation  # it belongs to another strategy than the preset's
    for given, said in {
        "patien": "no preset 'patien'. Did you mean 'patient'? Known: 'paper', 'patient'.",
        "3": "no preset 3. Known: 'paper', 'patient'.",
    }.items():
        with pytest.raises(FedmtError) as caught:
            load_config("federation.toml", [f"preset={given}"])
        assert said in str(caught.value)
    with pytest.raises(FedmtError, match=r"'fedmt_test_own:Plain' has no preset 'paper'\. It has none"):
        load_config("federation.toml", ["preset=paper", "method={name='fedmt_test_own:Plain'}"])


@pytest.mark.slow
def test_the_command_line_shows_them(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedmt", "check", "federation.toml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    shown = " ".join((done.stdout + done.stderr).split())
    assert "fedmt_test_own:Cautious with fedmt_test_own:Signs" in shown


def test_a_strategy_is_found_too(folder: Path) -> None:
    assert (
        STRATEGIES.name_of(STRATEGIES.find("fedmt_test_own:Signs", "aggregation.name"))
        == "fedmt_test_own:Signs"
    )
