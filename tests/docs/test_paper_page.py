"""docs/results/paper.md agrees with the raw files, and the raw files identify their runs."""

import json
import runpy
from pathlib import Path

import paper_claims
import paper_page
import paper_queue
import paper_runs
import pytest

from fedmt.commands.sweeps.expansion import Run
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.config import load_config
from fedmt.training.run import run

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_raw_files_make(tables):
    known = paper_page.PAGE.read_text()
    assert paper_page.written(known, tables) == known, "run: python scripts/paper_page.py"
    assert (
        known.count("<!-- generated: ") == known.count("<!-- end -->") == len(paper_page.PART.findall(known))
    )
    for name in paper_page.EXPERIMENTS:
        assert f"fedmt reproduce {name}`" in known


def test_the_seeds_of_the_main_table_and_of_the_papers_network_are_shown(tables):
    """The main table alone may have one seed in each cell."""
    shown = paper_page.seeds(tables).splitlines()
    assert "| FedMT (T), n = 25, the paper's network | 67.06, 66.87, 66.83 | 0.12 | 0.23 |" in shown
    several = [
        cell
        for experiment in ("main", "paper_network")
        for cell in tables.cells(experiment)
        if len(tables.finished(experiment, *cell)) > 1
    ]
    assert len(shown) == len(several) + 2  # and the two lines of the header


def test_a_cell_has_the_last_rounds_of_its_seeds(tables):
    """Reads the files without using the scripts."""
    found = []
    for seed in range(3):
        lines = (paper_runs.EARLIER / f"e-n25-seed{seed}.jsonl").read_text().splitlines()
        found.append(100 * json.loads(lines[-1])["accuracy"]["fine"])
    figure = tables.figure("paper_network", "n = 25", "FedMT (E)", "accuracy.fine")
    assert figure.seeds == 3 and figure.value == pytest.approx(sum(found) / 3)
    assert (
        tables.cell("paper_network", "n = 25", "FedMT (E)", "accuracy.fine")
        == "67.18 ± 0.15<br>*66.01 ± 0.13*<br>+1.17"
    )


def printed_cells():
    """(experiment, row, column, metric) of every figure of the paper that the experiments show next to
    ours."""
    for name, path in known_experiments().items():
        experiment = read_experiment(path)
        for row in experiment.file.rows:
            for column in experiment.file.columns:
                for metric in experiment.file.show:
                    figure = experiment.paper_figure(metric, row.label, column.label)
                    if figure is not None:
                        yield name, row.label, column.label, metric, list(figure)


def place_in_the_paper(name: str, row: str, column: str, metric: str) -> tuple[str, str, str]:
    """The table, row and column in printed.json."""
    if name in ("main", "paper_network"):
        baseline = column in ("Single", "FedTrans", "FedRep")
        return "Table 6, random" if baseline else "Table 2", row, column.removesuffix(" (ImageNet)")
    if name == "initialization":
        start, n = row.split(", ")
        return f"Table 6, {start}", n, column
    if name == "fitzpatrick":
        return f"Table 3, {metric.removeprefix('accuracy.')} classes", row, column
    if name in ("readings", "cifar100"):
        return "Table 2", row if name == "cifar100" else "n = 25", column
    if name in ("thresholds", "lambda2"):
        return {"thresholds": "Table 7", "lambda2": "Table 8"}[name], row, column
    if row == "C = 80":
        return "Section 4, clients", row, column
    if name == "estimators":
        return "Table 9", row, column.replace("(E, counting)", "(E)")
    return ("Table 2", "n = 25", column) if row in ("IID", "C = 10") else ("Table 9", row, column)


def test_the_experiments_have_the_papers_figures():
    printed = json.loads((paper_runs.FOLDER / paper_runs.PRINTED).read_text())
    used = set()
    for name, row, column, metric, figure in printed_cells():
        place = place_in_the_paper(name, row, column, metric)
        table, at, method = place
        assert printed[table][at][method] == figure, (name, row, column)
        used.add(place)
    every = {
        (t, r, c) for t, rows in printed.items() if t != "about" for r, cells in rows.items() for c in cells
    }
    assert used == every


# -- raw files -----------------------------------------------------------------------------------------

CONFIG = """\
device = "cpu"

[method]
name = "fedmt"
correspondence = "estimated"

[training]
rounds = 2
warmup_epochs = 1

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a finished run."""
    found = tmp_path_factory.mktemp("runs")
    (found / "federation.toml").write_text(CONFIG)
    run(load_config(found / "federation.toml"), found / "runs" / "first")
    return found


@pytest.mark.slow
def test_a_run_folder_becomes_a_raw_file(folder, tmp_path):
    paper_runs.main(folder / "runs", tmp_path)
    (measured,) = paper_runs.Runs(tmp_path, None).all
    last = json.loads((folder / "runs" / "first" / "metrics.jsonl").read_text().splitlines()[-1])
    assert measured.finished and measured.rounds == 2
    for space in ("garment", "department"):
        assert measured.last(f"accuracy.{space}") == pytest.approx(100 * last["accuracy"][space], abs=1e-3)
    assert measured.last("correspondence_error") == pytest.approx(last["correspondence_error"], abs=1e-5)
    assert measured.about["versions"]["fedmt"] and measured.about["seconds"] > 0
    assert str(folder) not in (tmp_path / measured.file).read_text()
    assert paper_runs.identity(measured.config) == paper_runs.identity(
        load_config(folder / "federation.toml")
    )


@pytest.mark.slow
def test_a_stopped_run_counts_as_stopped_and_gives_way_to_the_finished_one(folder, tmp_path):
    name, text = paper_runs.to_json(folder / "runs" / "first")
    raw = json.loads(text)
    cut = {**raw, "series": {key: values[:2] for key, values in raw["series"].items()}}
    (tmp_path / f"{name}.json").write_text(json.dumps(cut))
    assert not paper_runs.Runs(tmp_path, None).all[0].finished
    paper_runs.main(folder / "runs", tmp_path)
    assert [r.finished for r in paper_runs.Runs(tmp_path, None).all] == [True]
    raw["series"]["accuracy.garment"][1] += 0.01  # the same run on another day, with another result
    (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    paper_runs.main(folder / "runs", tmp_path)
    (twice,) = paper_runs.Runs(tmp_path, None).repeated()
    assert [r.file for r in twice] == [f"{name}-repeat-2.json", f"{name}.json"]


def test_the_place_of_a_file_does_not_tell_runs_apart_and_a_setting_does():
    def identity(*changes: str, weights: Path | None = None) -> str:
        path = ROOT / "experiments" / "base" / "cifar100.toml"
        config = load_config(path, list(changes))
        model = config.model.model_copy(update={"weights": weights})
        return paper_runs.identity(config.model_copy(update={"model": model}))

    assert identity() == identity("benchmark.data.path=/elsewhere") == identity("checkpoint_every=1")
    assert identity(weights=Path("/a/resnet18.pth")) == identity(weights=Path("resnet18.safetensors"))
    others = [
        identity(),
        identity("method.xi=0.7"),
        identity("training.rounds=7"),
        identity(weights=Path("a")),
    ]
    assert len(set(others)) == 4


# -- what is still to be run ---------------------------------------------------------------------------


def test_the_queue_has_every_missing_run_once_and_none_that_is_known(tables, tmp_path):
    weights = tuple(tmp_path / f"{name}.pth" for name in ("resnet18", "mobilenet_v2"))
    for file in weights:
        file.touch()
    queue = list(paper_queue.missing(tables.runs, None, weights))
    keys = [(paper_runs.identity(one.config), one.config.seed) for _, one in queue]
    assert len(set(keys)) == len(keys)
    known = {(paper_runs.identity(run.config), run.config.seed) for run in tables.runs.all if run.finished}
    assert not known & set(keys)
    for name in paper_page.EXPERIMENTS:
        for row, column in tables.cells(name):
            if not tables.finished(name, row, column) and (name, row) not in LEFT_OUT:
                assert (paper_runs.identity(tables.cells(name)[row, column].runs[0].config), 0) in keys
    for row in ("n = 5", "n = 25"):
        for seed in range(3):
            cell = tables.cells("main")[row, "SemiFL"]
            key = paper_runs.identity(cell.runs[0].config), seed
            assert (key in keys) != (key in known)


LEFT_OUT = {("backbones", "ResNet50, ImageNet"), ("cifar100", "n = 5")}
"""There are no weights for the first, and the second is a bound."""


def test_the_estimate_of_a_run_is_what_was_measured(tables):
    """Without the start, Single took 31 s and FedMT 167 s."""
    for column, measured in (("Single", 31), ("FedMT (T)", 167)):
        config = tables.cells("paper_network")["n = 25", column].runs[0].config
        assert paper_queue.estimated_seconds(config) - paper_queue.START == pytest.approx(measured, rel=0.15)


@pytest.mark.slow
def test_a_run_of_the_queue_becomes_a_raw_file(folder, tmp_path, capsys):
    config = load_config(folder / "federation.toml")
    paper_queue.make(Run("FedMT (E), seed 0", config, "", "key"), "methods: FedMT (E), seed 0", tmp_path)
    (measured,) = paper_runs.Runs(tmp_path, None).all
    assert measured.finished and measured.last("accuracy.garment") is not None
    assert capsys.readouterr().out.startswith("methods: FedMT (E), seed 0: {'garment': ")


@pytest.mark.slow
def test_a_run_of_the_queue_can_be_stopped_early(folder, tmp_path, capsys):
    config = load_config(folder / "federation.toml")
    paper_queue.make(Run("FedMT (E), seed 0", config, "", "key"), "methods: FedMT (E), seed 0", tmp_path, 1)
    (measured,) = paper_runs.Runs(tmp_path, None).all
    assert not measured.finished and measured.rounds == 1
    whole, _ = paper_runs.to_json(folder / "runs" / "first")
    assert measured.file == f"{whole}.json"
    said = "methods: FedMT (E), seed 0 (stopped after 1 of 2 rounds): {'garment': "
    assert capsys.readouterr().out.startswith(said)


def test_a_stopped_run_is_missing_unless_it_has_enough_rounds(tables, tmp_path):
    cell = tables.cells("main")["n = 10", "SemiFL"]
    config = cell.runs[0].config
    key = paper_runs.identity(config), config.seed
    runs = paper_runs.Runs(tmp_path, None)
    runs.all = [paper_runs.Measured(config, {"accuracy.fine": [0.1] * 21}, {}, "stopped.json")]
    for enough, wanted in ((None, True), (21, True), (20, False)):
        queue = paper_queue.missing(runs, None, (), enough)
        assert (key in {(paper_runs.identity(r.config), r.config.seed) for _, r in queue}) == wanted
    whole, part = (paper_queue.estimated_seconds(config, rounds) for rounds in (None, 10))
    assert part - paper_queue.START == pytest.approx((whole - paper_queue.START) / 4)


@pytest.mark.slow
def test_a_run_that_dies_is_tried_again_and_does_not_stop_the_others(tmp_path, capsys):
    """A good one, one that dies the first time, and one that dies every time, two at a time."""
    scripts = {
        "good": "",
        "once": "import os, pathlib\np = pathlib.Path(__file__ + '.died')\n"
        "if not p.exists():\n    p.touch()\n    os._exit(3)\n",
        "always": "import os\nos._exit(4)\n",
        "last": "",
    }
    work = []
    for name, text in scripts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(f"{text}open(__file__ + '.made', 'a').write('x')\n")
        work.append((name, (str(path),)))
    paper_queue.side_by_side(runpy.run_path, work, 2)
    made = {name for name in scripts if Path(tmp_path, f"{name}.py.made").exists()}
    assert made == {"good", "once", "last"}
    assert all(Path(tmp_path, f"{name}.py.made").read_text() == "x" for name in made)
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == [
        "always: its process ended with status 4. It is left out.",
        "always: its process ended with status 4. It is tried again.",
        "once: its process ended with status 3. It is tried again.",
    ]


# -- claims --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compared", "verdict"),
    [
        ([("a", 2.0, 1.0), ("b", 3.0, 1.0)], "holds"),
        ([("a", 2.0, 1.0), ("b", None, 1.0)], "holds where run"),
        ([("a", 2.0, 1.0), ("b", 0.0, 1.0)], "holds in part"),
        ([("a", 0.0, 1.0), ("b", None, None)], "does not hold"),
        ([("a", None, 1.0)], "not run"),
    ],
)
def test_the_verdict_on_a_claim(compared, verdict, tables):
    claim = paper_claims.Claim("text", lambda _: iter(compared))
    assert claim.judged(tables)[0] == verdict


def test_a_claim_about_rows_needs_two_of_them(tables):
    def verdict(*compared):
        return paper_claims.Claim("text", lambda _: iter(compared), rows=2).judged(tables)[0]

    first, second = ("FedMT (T) and Single, C = 10", 2.0, 1.0), ("FedMT (T) and Single, C = 20", 2.0, 1.0)
    assert verdict(first, ("FedMT (E) and Single, C = 10", 2.0, 1.0)) == "not run"
    assert verdict(first, second) == "holds"
    assert verdict(first, ("FedMT (T) and Single, C = 20", None, 1.0)) == "not run"


def test_a_claim_of_one_example_is_open_until_all_were_tried(tables):
    def verdict(*compared):
        return paper_claims.Claim("text", lambda _: iter(compared), one=True).judged(tables)[0]

    assert verdict(("a", 0.0, 1.0), ("b", None, 1.0)) == "not so far"
    assert verdict(("a", 0.0, 1.0), ("b", 2.0, 1.0)) == "holds"
    assert verdict(("a", 0.0, 1.0)) == "does not hold"


def test_every_claim_can_be_judged(tables):
    """The claims' rows and columns exist in the experiments."""
    for claim in paper_claims.CLAIMS:
        assert list(claim.compared(tables))
