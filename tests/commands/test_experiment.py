"""Experiment files: their expansion, and the messages for bad files. Nothing is trained here."""

import tomllib
from pathlib import Path

import pytest

from fedmt.commands.quickstart import quickstart_config
from fedmt.commands.sweeps.expansion import Sweep, expand
from fedmt.commands.sweeps.experiment import (
    experiments_folder,
    find_experiment,
    known_experiments,
    read_experiment,
)
from fedmt.commands.sweeps.figures import spelled_out
from fedmt.commands.sweeps.scales import cost, scale_settings
from fedmt.config import dump_config, load_config, parse_config
from fedmt.core.errors import FedmtError

BASE = """\
[method]
name = "fedmt"
xi = 0.5

[training]
rounds = 40
warmup_epochs = 3

[model]
backbone = "small_cnn"

[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 2 }
per_class = 2
samples = 800
"""

EXPERIMENT = """\
title = "A sweep"
config = "base.toml"
show = ["accuracy.garment"]

[[columns]]
label = "Single"
set = { "method.name" = "single" }

[[columns]]
label = "FedMT (T)"
set = { "training.rounds" = 20, training.batch_size = 10 }

[[rows]]
label = "short"
set = { "training.rounds" = 10, "training.warmup_epochs" = 1 }
paper = { Single = [12.5, 0.5] }

[[rows]]
label = "plain"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "sweep.toml").write_text(EXPERIMENT)
    return tmp_path


def cells(folder: Path, **options):
    found = expand(read_experiment(folder / "sweep.toml"), Sweep(**options))
    return {(c.row, c.column): c for c in found}


def shipped(suffix: str = "") -> list[Path]:
    return [p for name, p in known_experiments().items() if name.endswith(suffix)]


# -- expansion -----------------------------------------------------------------------------------------


def test_base_row_column_scale_set(folder):
    """Each stage overrides the one before."""
    training = {k: c.runs[0].config.training for k, c in cells(folder).items()}
    assert training["plain", "Single"].rounds == 40  # the base
    assert training["short", "Single"].rounds == 10  # the row overrides the base
    assert training["short", "FedMT (T)"].rounds == 20  # the column overrides the row
    assert training["short", "FedMT (T)"].warmup_epochs == 1
    assert training["plain", "FedMT (T)"].batch_size == 10  # a nested table means the same as a dotted key
    tiny = cells(folder, scale="tiny")["short", "FedMT (T)"].runs[0].config.training
    assert (tiny.rounds, tiny.local_epochs, tiny.warmup_epochs) == (2, 1, 1)
    over = cells(folder, scale="tiny", overrides=("training.rounds=7",))
    assert {c.runs[0].config.training.rounds for c in over.values()} == {7}


def test_what_every_cell_has(folder):
    """The file's own `set` overrides the base, and rows and columns override it."""
    given = 'set = { "training.rounds" = 30, "training.batch_size" = 25, "training.clip" = 2.0 }'
    (folder / "sweep.toml").write_text(EXPERIMENT.replace("show =", f"{given}\nshow ="))
    training = {k: c.runs[0].config.training for k, c in cells(folder).items()}
    assert [training["plain", "Single"].rounds, training["short", "Single"].rounds] == [30, 10]
    assert [training["plain", c].batch_size for c in ("Single", "FedMT (T)")] == [25, 10]
    assert {t.clip for t in training.values()} == {2.0}
    typo = given.replace("rounds", "roundz")
    (folder / "sweep.toml").write_text(EXPERIMENT.replace("show =", f"{typo}\nshow ="))
    with pytest.raises(FedmtError, match=r"sweep.toml, set: unknown key 'training.roundz'.*'rounds'"):
        cells(folder)


def test_cells_and_seeds(folder):
    found = cells(folder, seeds=3)
    assert len(found) == 4
    assert all([r.config.seed for r in c.runs] == [0, 1, 2] for c in found.values())
    keys = [r.key for c in found.values() for r in c.runs]
    assert len(set(keys)) == 12
    # The folder's name depends only on the config, and describes its content.
    assert keys == [r.key for c in cells(folder, seeds=3).values() for r in c.runs]
    assert keys[0].startswith("fashion_mnist-single-seed0-")


def test_another_method_starts_without_the_bases_options(folder):
    found = cells(folder)
    assert found["plain", "Single"].runs[0].config.method == {"name": "single"}
    assert found["plain", "FedMT (T)"].runs[0].config.method["xi"] == 0.5


def test_equal_runs_share_a_folder(folder):
    text = EXPERIMENT + '\n[[rows]]\nlabel = "plain again"\nset = { "training.warmup_epochs" = 3 }\n'
    (folder / "sweep.toml").write_text(text)
    (folder / "other.toml").write_text(EXPERIMENT.replace("A sweep", "Another"))
    found = cells(folder)
    assert [r.key for r in found["plain", "Single"].runs] == [
        r.key for r in found["plain again", "Single"].runs
    ]
    other = expand(read_experiment(folder / "other.toml"), Sweep())
    assert {r.key for c in other for r in c.runs} == {r.key for c in found.values() for r in c.runs}


def test_only(folder):
    chosen = {k for k, c in cells(folder, only=("SHORT",)).items() if c.selected}
    assert chosen == {("short", "Single"), ("short", "FedMT (T)")}
    chosen = {k for k, c in cells(folder, only=("short", "single")).items() if c.selected}
    assert len(chosen) == 3
    chosen = {k for k, c in cells(folder, only=("single, short",)).items() if c.selected}
    assert chosen == {("short", "Single")}
    with pytest.raises(FedmtError, match="no row or column"):
        cells(folder, only=("medium",))
    # A setting that some methods do not know is accepted if the methods of all selected cells know it.
    with pytest.raises(FedmtError, match=r"--set method.xi \(short, Single\)"):
        cells(folder, overrides=("method.xi=0.7",))
    assert cells(folder, only=("fedmt",), overrides=("method.xi=0.7",))["short", "Single"].runs == ()


def test_skip_and_weights(folder):
    text = EXPERIMENT.replace('label = "plain"', 'label = "plain"\nweights = "needed"')
    text = text.replace('label = "Single"', 'label = "Single"\nweights = "used"')
    text += '\n[[skip]]\nrow = "short"\ncolumn = "FedMT (T)"\nreason = "no sense"\n'
    (folder / "sweep.toml").write_text(text)
    found = cells(folder)
    assert found["short", "FedMT (T)"].skipped == "no sense"
    assert found["plain", "Single"].runs == () and "--weights" in found["plain", "Single"].skipped
    assert found["short", "Single"].random_start and found["short", "Single"].runs
    weights = folder / "small_cnn-weights.pth"
    weights.touch()
    found = cells(folder, weights=(weights,))
    assert found["plain", "Single"].runs[0].config.model.weights == weights
    assert not found["short", "Single"].random_start
    (folder / "resnet50.pth").touch()  # named after another backbone
    assert cells(folder, weights=(folder / "resnet50.pth",))["short", "Single"].random_start
    with pytest.raises(FedmtError, match="no such file"):
        cells(folder, weights=(folder / "nowhere.pth",))


def test_data_folder(tmp_path):
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    base = BASE.replace('source = "fashion_mnist"', 'source = "cifar100", path = "../data/cifar-100-python"')
    (experiments / "base.toml").write_text(base.replace("garment", "fine").replace("department", "coarse"))
    (experiments / "sweep.toml").write_text(EXPERIMENT)

    def path(**options):
        return cells(experiments, **options)["plain", "Single"].runs[0].config.benchmark.data.path

    assert path() == tmp_path / "data" / "cifar-100-python"
    assert path(data=tmp_path / "elsewhere") == tmp_path / "elsewhere" / "cifar-100-python"


# -- scale and cost ------------------------------------------------------------------------------------

CIFAR = {
    "images": {"size": 64},
    "training": {"rounds": 200, "warmup_epochs": 50, "reference_epochs": 9},
    "model": {"backbone": "resnet18", "weights": "w.pth"},
    "benchmark": {
        "data": {"source": "cifar100", "path": "c"}, "wanted": "fine", "spaces": {"coarse": 10},
        "per_class": 25, "samples": 4000,
    },
}  # fmt: skip


def test_scale_rule():
    config = parse_config(CIFAR)
    assert scale_settings(config, "full") == {}
    small = {
        "model.backbone": "small_cnn",
        "model.weights": None,
        "images.size": 32,
        "training.rounds": 12,
        "training.local_epochs": 1,
        "training.reference_epochs": 5,
        "training.warmup_epochs": 20,
        "benchmark.samples": 800,
        "benchmark.subset": 4,
        "benchmark.test_samples": 2000,
    }
    assert scale_settings(config, "small") == small
    assert scale_settings(config, "tiny") == small | {
        "training.rounds": 2,
        "training.warmup_epochs": 2,
        "benchmark.samples": 100,
        "benchmark.subset": 2,
        "benchmark.test_samples": 200,
    }
    short = parse_config({**CIFAR, "training": {"rounds": 3, "warmup_epochs": 0}})
    assert scale_settings(short, "small")["training.rounds"] == 3
    assert scale_settings(short, "small")["training.warmup_epochs"] == 0
    uncounted = parse_config({**CIFAR, "benchmark": {**CIFAR["benchmark"], "samples": None}})
    assert "benchmark.samples" not in scale_settings(uncounted, "small")
    assert scale_settings(uncounted, "tiny")["benchmark.samples"] == 40


def test_the_bundled_set_is_small_already():
    config = quickstart_config("FedMT (T)", 0)
    assert scale_settings(config, "small") == {}
    tiny = scale_settings(config, "tiny")
    assert tiny["benchmark.samples"] == 18 and tiny["training.rounds"] == 2
    assert "benchmark.subset" not in tiny and "images.size" not in tiny


def test_cost_counts_every_pass():
    config = parse_config(CIFAR)
    assert cost(config) == 10 * 4000 * 200 + 2500 * (50 + 9 * 200)
    assert cost(parse_config({**CIFAR, "method": {"name": "single"}})) == 2500 * (50 + 9 * 200)
    centers = 10 * 4000 * 200
    assert cost(parse_config({**CIFAR, "method": {"name": "fedtrans"}})) == centers + 2500 * 100
    assert cost(parse_config({**CIFAR, "method": {"name": "fedrep"}})) == centers + 2500 * 9 * 200


# -- bad files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "A sweep"', "titel = 1", ["sweep.toml", "unknown key 'titel'", "'title'"]),
        ('config = "base.toml"', 'config = "bass.toml"', ["sweep.toml, line 2", "bass.toml"]),
        ("show = [", "show = [[", ["sweep.toml", "not valid TOML"]),
        ('show = ["accuracy.garment"]', "show = []", ["sweep.toml, line 3", "show"]),
        ("{ Single = [12.5, 0.5] }", "{ Singel = 3 }", ["sweep.toml", "rows.0.paper", "'Single'"]),
        ('label = "plain"', 'label = "short"', ["rows", "'short' is used twice"]),
        ('"training.warmup_epochs" = 1', '"training.warmup" = 1', ["row 'short'", "training.warmup"]),
        (
            '"method.name" = "single"',
            '"method.name" = "singel"',
            ["column 'Single'", "method.name", "singel"],
        ),
        ('"training.rounds" = 20', '"training.rounds" = 0', ["column 'FedMT (T)'", "training.rounds"]),
        ('"training.rounds" = 20', '"preset" = 1, "preset.x" = 0', ["column 'FedMT (T)'", "not a table"]),
        ('"training.rounds" = 20', '"seed" = 1', ["column 'FedMT (T)'", "--seeds"]),
        ('label = "plain"', 'label = "plain"\nweights = "maybe"', ["rows.1.weights", "'used' or 'needed'"]),
    ],
)
def test_bad_files_are_named_by_file_and_key(folder, old, new, said):
    assert EXPERIMENT.count(old) == 1
    (folder / "sweep.toml").write_text(EXPERIMENT.replace(old, new))
    with pytest.raises(FedmtError) as error:
        cells(folder)
    for word in said:
        assert word in str(error.value)


def test_a_mistake_in_the_base_is_named_there(folder):
    (folder / "base.toml").write_text(BASE.replace("xi = 0.5", "ix = 0.5"))
    with pytest.raises(FedmtError, match=r"base.toml, line 3: unknown key 'method.ix'"):
        cells(folder)


def test_unknown_names(folder):
    with pytest.raises(FedmtError, match="Did you mean 'methods'"):
        find_experiment("methds")
    assert find_experiment(str(folder / "sweep.toml")) == folder / "sweep.toml"
    with pytest.raises(FedmtError, match=r"nowhere.toml: this file does not exist"):
        read_experiment(find_experiment("nowhere.toml"))


# -- the shipped ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", shipped(), ids=lambda p: p.stem)
def test_paper_figures(path):
    """Read from the TOML file itself: the figures are percentages and belong to existing columns."""
    raw = tomllib.loads(path.read_text())
    columns = {c["label"] for c in raw["columns"]}
    count = 0
    for row in raw["rows"]:
        for key, value in row.get("paper", {}).items():
            assert key in (raw["show"] if isinstance(value, dict) else columns)
            for column, figure in value.items() if isinstance(value, dict) else [(key, value)]:
                assert column in columns
                numbers = figure if isinstance(figure, list) else [figure]
                assert 1 <= len(numbers) <= 2 and all(0 <= n <= 100 for n in numbers)
                count += 1
    expected = {
        "main": 45, "initialization": 30, "fitzpatrick": 24, "thresholds": 8, "lambda2": 14, "estimators": 16,
        "noniid": 6, "scalability": 4, "cifar100": 4, "readings": 14, "paper_network": 12,
    }  # fmt: skip
    assert count == expected.get(path.stem, 0)


@pytest.mark.parametrize("path", shipped(), ids=lambda p: p.stem)
def test_every_experiment_parses(path):
    for scale in ("full", "small", "tiny"):
        found = expand(read_experiment(path), Sweep(scale=scale))
        assert any(c.runs for c in found)
        assert all(c.runs or c.skipped for c in found)


def test_the_bundled_base_is_the_quickstarts():
    config = load_config(experiments_folder() / "base" / "fashion_mnist.toml")
    assert dump_config(config) == dump_config(quickstart_config("FedMT (T)", 0))


def test_all_fine_labels_of_cifar100_has_as_many_centers():
    """A table in `set` is merged into the base's table, so the coarse centers must be removed by name."""
    cells = expand(read_experiment(experiments_folder() / "cifar100.toml"), Sweep())
    spaces = {c.column: c.runs[0].config.benchmark.spaces for c in cells if c.row == "n = 25"}
    assert spaces["All fine labels"] == {"coarse": 0, "fine": 10}
    assert spaces["FedMT (T)"] == {"coarse": 10}


def test_every_row_of_the_ablation_differs():
    """A column's setting would override a row's, and the row's label would then be wrong."""
    cells = expand(read_experiment(experiments_folder() / "cifar100_ablation.toml"), Sweep(seeds=1))
    assert len({c.runs[0].key for c in cells}) == len(cells)
    assert all(c.runs[0].config.benchmark.test_per_class for c in cells)  # not judged on the test images


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> tuple[Path, ...]:
    """Files that are only named, because nothing is loaded here."""
    folder = tmp_path_factory.mktemp("weights")
    found = tuple(folder / f"{name}_imagenet.pth" for name in ("resnet18", "mobilenet_v2", "resnet50"))
    for file in found:
        file.touch()
    return found


def keys_of(name: str, weights: tuple[Path, ...], *rows: str) -> set[str]:
    """The runs of an experiment, for all of its rows or for some."""
    found = expand(read_experiment(known_experiments()[name]), Sweep(seeds=1, weights=weights))
    return {r.key for c in found if not rows or c.row in rows for r in c.runs}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("coarse", ()),
        ("initialization", tuple(f"ImageNet, n = {n}" for n in (5, 10, 15, 20, 25))),
        ("backbones", ("ResNet9, random",)),
        ("scalability", ("C = 10",)),
        ("cifar100_strategies", ("FedAvgM (default)",)),
        ("cifar100_participation", ("all",)),
    ],
)
def test_the_runs_of_the_main_table_are_not_made_twice(name, rows, weights):
    """A method has the same settings in all of them, so a cell that they share is one run."""
    assert keys_of(name, weights, *rows) <= keys_of("main", weights)


def test_the_rows_of_the_papers_experiments_differ(weights):
    """A column's setting would override a row's, and the row's label would then be wrong."""
    for name in ("thresholds", "lambda2", "readings", "estimators", "mhat", "noniid", "baselines_search"):
        found = expand(read_experiment(known_experiments()[name]), Sweep(seeds=1, weights=weights))
        assert len({c.runs[0].key for c in found}) == len(found), name


@pytest.mark.parametrize("name", ["main", "coarse", "backbones", "initialization"])
def test_what_the_search_found_is_used_with_every_network_from_random_weights(name, weights):
    """From ImageNet weights, where it found nothing better, they have the recipe."""
    for cell in expand(read_experiment(known_experiments()[name]), Sweep(seeds=1, weights=weights)):
        config, random = cell.runs[0].config, cell.runs[0].config.model.weights is None
        single, fedrep = (config.method["name"] == method for method in ("single", "fedrep"))
        assert config.training.weight_decay == (0.005 if single and random else 0.001), (
            cell.row,
            cell.column,
        )
        assert config.training.reference_epochs == (16 if fedrep and random else 4), (cell.row, cell.column)


def test_the_search_for_the_baselines_is_not_judged_on_test_images(weights):
    for cell in expand(read_experiment(known_experiments()["baselines_search"]), Sweep(weights=weights)):
        assert all(run.config.benchmark.test_per_class == 75 for run in cell.runs)


SUITE = """\
title = "Two federations"
show = ["balanced_accuracy", "accuracy.department"]
baseline = "Single"

[[columns]]
label = "Single"
set = { "method.name" = "single" }

[[columns]]
label = "FedMT"

[[rows]]
label = "first"
config = "base.toml"

[[rows]]
label = "second"
config = "other.toml"
[rows.cells."FedMT"]
"training.rounds" = 7
"""


def test_a_row_may_have_a_config_of_its_own_and_a_cell_its_own_settings(folder):
    (folder / "other.toml").write_text(BASE.replace("rounds = 40", "rounds = 30"))
    (folder / "suite.toml").write_text(SUITE)
    cells = expand(read_experiment(folder / "suite.toml"), Sweep(seeds=1))
    rounds = {(c.row, c.column): c.runs[0].config.training.rounds for c in cells}
    assert rounds == {
        ("first", "Single"): 40,
        ("first", "FedMT"): 40,
        ("second", "Single"): 30,
        ("second", "FedMT"): 7,
    }
    assert spelled_out("balanced_accuracy", cells[0].runs[0].config) == "balanced_accuracy.garment"
    assert spelled_out("accuracy.department", cells[0].runs[0].config) == "accuracy.department"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('config = "other.toml"\n', "", "row 'second': config: missing"),
        ('cells."FedMT"', 'cells."FedMTT"', "no 'FedMTT'. Did you mean 'FedMT'?"),
        ('baseline = "Single"', 'baseline = "Sing"', "baseline: no 'Sing'"),
        ('"balanced_accuracy",', '"sensitivity",', "'sensitivity' has values per class only"),
    ],
)
def test_mistakes_in_rows_of_their_own(folder, old, new, said):
    (folder / "other.toml").write_text(BASE)
    assert old in SUITE
    (folder / "suite.toml").write_text(SUITE.replace(old, new))
    with pytest.raises(FedmtError) as raised:
        read_experiment(folder / "suite.toml")
    assert said in str(raised.value) and "suite.toml" in str(raised.value)
