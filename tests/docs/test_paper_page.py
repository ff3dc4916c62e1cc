"""docs/results/paper.md agrees with the raw files, and the raw files identify their runs."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest

from fedmt.commands.sweeps.expansion import Run
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.config import load_config
from fedmt.training.run import run

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


def script(name: str):
    """Loads a script as a module. Scripts import each other by name, as they do when they are run."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


paper_runs, paper_tables, paper_claims, paper_page, paper_queue = map(
    script, ("paper_runs", "paper_tables", "paper_claims", "paper_page", "paper_queue")
)


@pytest.fixture(scope="module")
def tables():
    return paper_tables.Tables(paper_runs.Runs())


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


def test_what_the_page_says_in_words(tables):
    page = " ".join(paper_page.PAGE.read_text().split())
    value, rows = tables.value, [row for row, column in tables.cells("main") if column == "FedMT (T)"]
    given, estimated = ([value("main", row, f"FedMT ({x})") for row in rows] for x in "TE")
    printed = [tables.printed("main", row, "FedMT (T)", "accuracy.fine")[0] for row in rows]
    above = [ours - theirs for ours, theirs in zip(given, printed, strict=True)]
    assert f"it is {-above[0]:.1f} points below it at n = 5" in page
    assert f"and {min(above[1:]):.1f} to {max(above[1:]):.1f} points above it elsewhere" in page
    below = [t - e for t, e in zip(given, estimated, strict=True)]
    assert f"{below[0]:.1f} points below it at n = 5, where the paper has {57.12 - 46.41:.1f}" in page
    assert f"at most {max(below[1:]):.1f} below from n = 10 on" in page
    few, many = (
        {column: value("main", row, column) for row_, column in tables.cells("main") if row_ == row}
        for row in ("n = 5", "n = 25")
    )
    ahead = many["FedMT (T)"] - many["FedRep"]
    assert f"{ahead:.0f} points above FedRep, where the paper has {66.70 - 26.53:.0f}." in page
    for column in tables.columns("main"):  # is the lead of FedMT (T) smaller than in the paper?
        for row in rows:
            if not column.startswith("FedMT") and column != "FedTrans (ImageNet)":
                ours, theirs = (
                    known(row, "FedMT (T)") - known(row, column)
                    for known in (
                        lambda *cell: value("main", *cell),
                        lambda *cell: tables.printed("main", *cell, "accuracy.fine")[0],
                    )
                )
                assert (ours > theirs) == (column == "SemiFL"), (row, column)
    assert f"Single reaches {many['Single']:.1f}, where the paper has 17.7" in page
    assert f"and {27.93 - few['SemiFL']:.1f} below the paper's figure" in page
    weaker = [
        tables.printed("main", row, "SemiFL", "accuracy.fine")[0] - value("main", row, "SemiFL")
        for row in rows
    ]
    assert round(min(weaker)) == 1 and round(max(weaker)) == 6
    assert "because SemiFL is one to six points weaker here" in page
    assert 0.4 < few["SemiFL"] - few["Single"] < 0.6  # "half a point above Single"
    longer = value("paper_network", "n = 5", "FedMT (T)")
    assert f"At n = 5, it is still {57.12 - longer:.1f} points below the paper after 150 rounds" in page
    trans, rep, ours = (
        value("coarse", "n = 5", column, "accuracy.coarse") for column in ("FedTrans", "FedRep", "FedMT (E)")
    )
    assert f"only {ours - trans:.1f} and FedRep {ours - rep:.1f} points below FedMT (E)" in page
    says_what_imagenet_weights_do(tables, page)
    says_what_other_tables_show(tables, page)
    found = {row: value("baselines_search", row, "held out") for row, _ in tables.cells("baselines_search")}
    views = found["Single: the recipe"] - found["Single: weak views"]
    eight, sixteen = (found[f"FedRep: {epochs} reference epochs"] for epochs in (8, 16))
    assert f"gain {views:.0f} points over weak views in Single" in page
    assert f"instead of four gain FedRep {sixteen - found['FedRep: the recipe']:.1f} points" in page
    views = [
        found[f"{m}, ResNet18: the recipe"] - found[f"{m}, ResNet18: weak views"]
        for m in ("FedRep", "FedTrans")
    ]
    assert f"with ResNet18 only {views[0]:.1f} in FedRep and nothing in FedTrans" in page and views[1] < 0.6
    longer = value("paper_network", "n = 25", "FedRep")
    assert f"FedRep reaches {longer:.1f}, where the paper has 26.5" in page
    gains = [found[f"{m}: the recipe"] - found[f"{m}, ResNet18: the recipe"] for m in paper_queue.FEDERATED]
    assert "ResNet9 gains FedRep {:.0f} points, FedTrans {:.0f} and SemiFL {:.0f} over".format(*gains) in page
    assert found["SemiFL: xi 0.4"] - found["SemiFL: the recipe"] < 1  # "gains less than a point"
    assert f"0.8 costs {found['SemiFL: the recipe'] - found['SemiFL: xi 0.8']:.0f} points" in page
    first, second = eight - found["FedRep: the recipe"], sixteen - eight
    assert f"**FedRep** gains {first:.0f} points with eight epochs" in page
    assert f"and another {second:.1f} with sixteen" in page
    assert found["FedRep: 32 reference epochs"] < sixteen  # "nothing more"
    tuned = [
        found["FedTrans: the recipe"] - found[f"FedTrans: {other}"]
        for other in ("fine-tuning at 0.03", "300 epochs of fine-tuning")
    ]
    assert f"for longer costs {min(tuned):.0f} to {max(tuned):.0f} points" in page
    rate = found["Single (ImageNet): rate 0.01"] - found["Single (ImageNet): rate 0.03, the default"]
    assert page.count(f"gains {rate:.1f} points") == 2
    assert found["Single (ImageNet): rate 0.003"] < found["Single (ImageNet): rate 0.01"]  # "no better"
    gains = [
        found[f"{m} (ImageNet): rate 0.03, the default"] - found[f"{m}, ResNet18: the recipe"]
        for m in ("FedTrans", "FedRep")
    ]
    assert "they gain FedTrans {:.0f} points and FedRep {:.0f} points.".format(*gains) in page
    for method, others in {"FedTrans": ("rate 0.01",), "FedRep": ("rate 0.01", "8 reference epochs")}.items():
        for other in others:  # "gains nothing": less than the standard error
            gain = (
                found[f"{method} (ImageNet): {other}"] - found[f"{method} (ImageNet): rate 0.03, the default"]
            )
            assert gain < 0.6
    for least in tables.finished("main", "n = 5", "SemiFL"):
        right = [v for v in least.series["pseudo_label_accuracy"] if v is not None]
        assert max(right) < 0.51 and 0.29 < right[-1] < 0.37  # "at best half", "about a third"
    most = value("main", "n = 25", "SemiFL", "pseudo_label_accuracy")
    assert f"At n = 25, {most:.0f}% are" in page
    assert f"{value('readings', 'as printed', 'FedMT (T)'):.1f} where the paper has 66.7" in page


def e_above_t(tables):
    given, estimated = (
        tables.value("backbones", "ResNet18, ImageNet", c) for c in ("FedMT (T)", "FedMT (E)")
    )
    return estimated - given


def says_what_imagenet_weights_do(tables, page):
    rows = [row for row, column in tables.cells("main") if column == "FedMT (T)"]
    columns = [column for row, column in tables.cells("main") if row == "n = 5"]
    above = []
    assert f"There, FedMT (E) is {e_above_t(tables):.1f} points above FedMT (T)" in page
    for row in rows:
        known = {c: v for c in columns if (v := tables.value("main", row, c)) is not None}
        best = max((c for c in known if not c.startswith("FedMT")), key=known.__getitem__)
        assert best == "FedRep (ImageNet)"
        above.append(known["FedMT (T)"] - known[best])
    theirs = [
        tables.printed("main", row, "FedMT (T)", "accuracy.fine")[0]
        - tables.printed("main", row, "FedRep (ImageNet)", "accuracy.fine")[0]
        for row in rows
    ]
    assert f"{min(above):.0f} to {max(above):.0f} points above FedRep from ImageNet weights" in page
    assert f"In the paper, it is {min(theirs):.0f} to {max(theirs):.0f} points above." in page
    same = [tables.value("backbones", "ResNet18, ImageNet", c) for c in ("FedRep", "FedMT (T)", "FedMT (E)")]
    assert (
        f"FedMT (T) is {same[1] - same[0]:.1f} points above FedRep, and FedMT (E) {same[2] - same[0]:.1f}."
        in page
    )
    long = tables.value("paper_network", "n = 25", "FedRep")
    assert 3.5 < tables.value("main", "n = 25", "FedRep (ImageNet)") - long < 4.5  # "within 4 points"
    better = [
        [tables.value("main", row, f"{m}{start}") for start in ("", " (ImageNet)")]
        for row in ("n = 25", "n = 5")
        for m in ("FedTrans", "FedRep")
    ]
    assert [round(random - imagenet) for random, imagenet in better] == [1, -1, 3, -7]
    fedmt = ("FedMT (T)", "FedMT (E)")
    starts = [tables.value("backbones", "ResNet18, ImageNet", c) for c in fedmt]
    starts += [tables.value("paper_network", "n = 25", c) for c in fedmt]
    words = "{:.1f} and {:.1f} from ImageNet weights in 40 rounds, and {:.1f} and {:.1f} from random weights"
    assert words.format(*starts) in page
    semifl = [tables.value("backbones", row, "SemiFL") for row in ("ResNet18, ImageNet", "ResNet9, random")]
    assert f"SemiFL is {semifl[0] - semifl[1]:.0f} points better with ResNet18" in page
    for row in rows:
        ours = tables.value("main", row, "FedTrans (ImageNet)")
        second = tables.printed("main", row, "FedTrans (ImageNet)", "accuracy.fine")[0]
        sixth = tables.printed("initialization", f"ImageNet, {row}", "FedTrans", "accuracy.fine")[0]
        if row == "n = 5":
            assert f"by {second - ours:.0f} or {sixth - ours:.0f} points, depending" in page
        else:
            assert second < ours < sixth


def says_what_other_tables_show(tables, page):
    columns = ("FedTrans (ImageNet)", "FedRep (ImageNet)", "FedMT (T)", "FedMT (E)")
    for row in tables.rows("coarse"):
        trans, rep, *fedmt = (tables.value("coarse", row, c, "accuracy.coarse") for c in columns)
        if row == "n = 5":
            assert f"FedTrans by {trans - max(fedmt):.1f} to {trans - min(fedmt):.1f} points" in page
            assert f"and FedRep by {rep - max(fedmt):.1f} to {rep - min(fedmt):.1f}." in page
        else:
            assert all(abs(trans - value) < 1 for value in fedmt)
    behind = [
        tables.value("coarse", row, "FedMT (T)", "accuracy.coarse")
        - tables.value("coarse", row, column, "accuracy.coarse")
        for row in tables.rows("coarse")
        for column in ("Single", "SemiFL", "Single (ImageNet)")
    ]
    assert f"are {min(behind):.0f} to {max(behind):.0f} points below FedMT (T)" in page
    uniform = [tables.value("main", "n = 25", c) - tables.value("noniid", "IID", c) for c in columns[2:]]
    assert "FedMT reaches {:.1f} (T) and {:.1f} points (E) less at n = 25".format(*uniform) in page
    noniid = {
        row: [tables.value("noniid", row, c) for c in ("SemiFL", "FedMT (T)", "FedMT (E)")]
        for row in tables.rows("noniid")
    }
    equal, mild, strong, extreme = noniid.values()
    above = [value - semifl for semifl, *fedmt in (mild, strong) for value in fedmt]
    assert f"by {min(above):.0f} to {max(above):.0f} points at gamma 0.1 and 0.9" in page
    above = [value - extreme[0] for value in extreme[1:]]
    assert f"and by {min(above):.0f} to {max(above):.0f} at gamma 0.99" in page
    lost = [round(before - after) for before, after in zip(equal, extreme, strict=True)]
    assert lost[1] == lost[2] and f"FedMT loses {lost[1]} points and SemiFL {lost[0]}." in page
    assert f"FedMT reaches {extreme[2]:.1f}, where the paper has 41.1" in page
    assert 0 < min(strong[1] - strong[2], extreme[1] - extreme[2]) < 0.1  # "as much as FedMT (T)"
    assert round(extreme[1] - extreme[2]) == 1  # "or one point less"
    *_, strong, extreme = tables.rows("noniid")
    for row, words in (
        (strong, "it reaches {:.1f} instead of {:.1f}"),
        (extreme, "and {:.1f} instead of {:.1f}."),
    ):
        coarse = (tables.value("noniid", row, c, "accuracy.coarse") for c in ("FedMT (E)", "FedMT (T)"))
        assert words.format(*coarse) in page
    coarse = (tables.value("noniid", extreme, c, "accuracy.coarse") for c in ("FedMT (E)", "FedMT (T)"))
    assert "only {:.1f} at gamma 0.99, where FedMT (T) has {:.1f}".format(*coarse) in page
    errors = [
        tables.value("estimators", row, "FedMT (E)", "correspondence_error") for row in (strong, extreme)
    ]
    words = "(#estimators-of-the-correspondence-table-9) of {:.1f}, and at gamma 0.99 of {:.1f}"
    assert words.format(*errors) in page
    says_what_estimators_and_centers_do(tables, page)
    best, three = [], []
    for row in ("5 %", "10 %", "20 %"):
        known = {
            c: tables.value("fitzpatrick", row, c, "accuracy.nine")
            for c in ("Single", "FedTrans", "FedRep", "SemiFL", "FedMT (E)")
        }
        ours = known.pop("FedMT (E)")
        assert max(known, key=known.__getitem__) == "FedRep"
        best.append(ours - known["FedRep"])
        trans, ours = (
            tables.value("fitzpatrick", row, c, "accuracy.three") for c in ("FedTrans", "FedMT (E)")
        )
        three.append(trans - ours)
    assert f"{min(best):.0f} to {max(best):.0f} points above FedRep, the best baseline" in page
    assert f"FedTrans is {min(three[:2]):.0f} to {max(three[:2]):.0f} points above FedMT (E)" in page
    assert round(-three[2]) == 1  # "one below it"


def says_what_estimators_and_centers_do(tables, page):
    few, many = (
        {c: tables.value("scalability", row, c) for c in tables.columns("scalability")}
        for row in ("C = 10", "C = 80")
    )
    above = [many[c] - many["SemiFL"] for c in ("FedMT (T)", "FedMT (E)")]
    assert f"**, by {min(above):.0f} to {max(above):.0f} points, but it is not more robust" in page
    lost = {c: 100 * (few[c] - many[c]) / few[c] for c in few}
    assert round(lost["FedMT (T)"]) == round(lost["FedMT (E)"])
    assert (
        f"FedMT loses {lost['FedMT (T)']:.0f}% of its accuracy, and SemiFL {lost['SemiFL']:.0f}%. In the "
        f"paper, FedMT (E) loses 36%, and SemiFL {100 * (55.98 - 26.10) / 55.98:.0f}%." in page
    )
    ours, *others = (tables.value("estimators", "IID", c) for c in list(tables.columns("estimators"))[1:])
    counting, average, learned, _ = others
    assert f"reaches {ours:.1f}, and with the paper's estimator, {counting:.1f}" in page
    assert f"averaging the counts over the centers helps, by {average - counting:.1f} points" in page
    assert f"A learned M reaches {learned:.1f}, where the paper has 56.5" in page
    best, last, rounds, errors = [], [], set(), []
    for column in list(tables.columns("estimators"))[2:]:
        (one,) = tables.finished("estimators", "IID", column)
        curve = one.curve("accuracy.fine")
        rounds.add(max(curve, key=curve.__getitem__))
        best.append(max(curve.values()))
        last.append(best[-1] - curve[40])
        errors.append(one.last("correspondence_error"))
    assert round(min(errors)) == 5 and round(max(errors)) == 6 and rounds == {32, 33}
    assert f"best in round 32 or 33, with {min(best):.0f} to {max(best):.0f} on the test images" in page
    coarse = tables.value("estimators", "IID", "Learnable", "accuracy.coarse")
    assert f"the coarse classes rises to {coarse:.1f}" in page
    assert f"lose {min(last):.0f} to {max(last):.0f} points in the last rounds" in page
    ablation = {
        row: found
        for row in tables.rows("cifar100_ablation")
        if (found := tables.value("cifar100_ablation", row, "FedMT (T)")) is not None
    }
    recipe = ablation.pop("the recipe")
    assert min(ablation, key=ablation.__getitem__) == "targets for confident samples alone"
    first, second = sorted(ablation.values())[:2]
    assert f"(#what-each-ingredient-is-worth): {recipe - first:.1f} points" in page
    assert ablation["8 rounds x 5 local epochs"] == second
    assert f"FedMT (T) loses {recipe - second:.1f} points" in page
    both = [ablation[row] for row in ("R^p in addition", "guesses without the center's label")]
    assert f"At this cost, R^p loses {recipe - both[0]:.1f} points" in page
    worse = [
        tables.value("cifar100_ablation", row, "FedMT (T)", "accuracy.coarse")
        for row in ("R^p in addition", "guesses without the center's label")
    ]
    assert f"and {worse[0] - worse[1]:.1f} points worse in the coarse ones" in page
    assert abs(both[0] - both[1]) < 0.6  # "are as good as": within the standard error
    semifl, *fedmt = (
        tables.value("cifar100_participation", "all", c) - tables.value("cifar100_participation", "20 %", c)
        for c in ("SemiFL", "FedMT (T)", "FedMT (E)")
    )
    assert {round(loss) for loss in fedmt} == {5}
    assert f"FedMT loses 5 points, and SemiFL {semifl:.0f}" in page
    ranges = [
        max(values) - min(values)
        for row, column in tables.cells("main")
        if (values := [run.last("accuracy.fine") for run in tables.finished("main", row, column)])
    ]
    assert f"two seeds of the same method differ by up to {max(ranges):.1f} points" in page


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
