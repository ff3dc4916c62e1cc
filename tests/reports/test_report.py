"""From run folders to what the page shows, with and without the data."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmt.commands import cli
from fedmt.commands.sweeps.results import read_finished
from fedmt.core.errors import FedmtError
from fedmt.data.member import Member
from fedmt.data.sources.fashion_mnist import read_fashion_mnist
from fedmt.methods import FedMT, Single, Training
from fedmt.metrics import METRICS
from fedmt.models import Model, load
from fedmt.reports.content import ReportedRun, content, render, word
from fedmt.reports.report import Source, confident_mistakes, distinct, report
from fedmt.reports.results import at_temperature, for_priors
from fedmt.reports.watch import Follower
from fedmt.runs.evaluation import Evaluation, Predicted, evaluate, read_evaluation
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run


def page_data(path):
    text = path.read_text()
    begin = text.index('id="data">') + len('id="data">')
    return json.loads(text[begin : text.index("</script>", begin)])


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A real run of two rounds on bundled images."""
    from fedmt.config import parse_config

    raw = {
        "method": {"name": "fedmt", "correspondence": "estimated", "xi": 0.0},
        "training": {"rounds": 2, "reference_epochs": 1, "warmup_epochs": 2},
        "model": {"backbone": "small_cnn"},
        "benchmark": {
            "data": {"source": "fashion_mnist"},
            "wanted": "garment",
            "spaces": {"department": 1, "layer": 1},
            "per_class": 3,
            "samples": 20,
        },
    }
    path = tmp_path_factory.mktemp("real") / "run"
    run(parse_config(raw), path)
    return path


def test_an_evaluation_agrees_with_the_engine_s_accuracies(play, make_engine, make_federation, tmp_path):
    federation = make_federation(half=True)
    method = FedMT(training=Training(rounds=1, warmup_epochs=1), correspondence="estimated", xi=0.0)
    states, records = play(federation, method)
    made = evaluate(make_engine(federation, method), states[-1])
    accuracy = {t.space: float(np.mean(t.predicted == t.labels)) for t in made.tests}
    said, mean = records[-1]["accuracy"], records[-1]["mean_matrix"]["accuracy"]
    assert accuracy["garment"] == pytest.approx(said["garment"])
    assert accuracy["department"] == pytest.approx(mean["department"])
    kept = states[-1].kept["center-1"]["correspondence"]
    assert torch.equal(torch.from_numpy(made.estimates[made.members[1].name]), kept.float())
    made.write(tmp_path / "evaluation.npz")
    again = read_evaluation(tmp_path / "evaluation.npz")
    assert again.round == 1 and dict(again.spaces) == dict(made.spaces)
    assert np.array_equal(again.tests[1].predicted, made.tests[1].predicted)
    assert np.array_equal(again.estimates[again.members[1].name], made.estimates[made.members[1].name])
    (tmp_path / "evaluation.npz").write_bytes(b"PK nonsense")
    assert read_evaluation(tmp_path / "evaluation.npz") is None


@pytest.mark.parametrize(
    ("options", "said"), [({}, "estimated by em"), ({"estimator": "counting"}, "estimated by counting")]
)
def test_an_estimated_correspondence_is_not_called_given(play, make_engine, make_federation, options, said):
    """The default asks for given correspondences. If there are none, they are estimated."""
    federation = make_federation(half=True)
    unknown = tuple(replace(c, correspondence=None) for c in federation.centers)
    method = FedMT(training=Training(rounds=1, warmup_epochs=1), xi=0.0, **options)
    settings = {"method": {"name": "fedmt", "correspondence": "given", "estimator": method.estimator}}

    def shown(centers):
        made = replace(federation, centers=centers)
        states, records = play(made, method)
        for record in records:
            record["seconds"]["total"] = 1.0
        evaluation = evaluate(make_engine(made, method), states[-1])
        (run,) = content("t", "", [ReportedRun("x", records, settings, evaluation=evaluation)])["runs"]
        return run["method"], [c["correspondence"] for c in run["centers"]]

    assert shown(unknown) == (f"fedmt, M {said}", [None, said, said, said])
    assert shown(federation.centers) == ("fedmt, M given", [None, "given", "given", "given"])
    mixed = (unknown[0], *federation.centers[1:])
    text = f"fedmt, M {said} at 'center-1'; given at 'center-2', 'center-3'"
    assert shown(mixed) == (text, [None, said, "given", "given"])


def test_before_the_first_evaluation_the_plan_is_said(make_run, tmp_path):
    made = Source(make_run(tmp_path / "run")).reported("x")
    assert content("t", "", [made])["runs"][0]["method"] == "fedmt, M estimated by em"  # all four have M-hat
    bare = content("t", "", [replace(made, evaluation=None)])["runs"][0]
    assert bare["method"] == "fedmt, M given where known, else estimated by em"


def test_the_size_of_a_center_on_another_machine_is_not_known(make_engine, make_federation, tmp_path):
    federation = make_federation(half=True)
    one, *others = federation.centers
    far = Member(one.name, one.space, one.correspondence)
    federation = replace(federation, centers=tuple(others), elsewhere=(far,))
    engine = make_engine(federation, Single(Training(rounds=1, warmup_epochs=1)))
    made = evaluate(engine, engine.start()[0])
    made.write(tmp_path / "evaluation.npz")
    for found in (made, read_evaluation(tmp_path / "evaluation.npz")):
        assert [m.size for m in found.members] == [len(federation.reference), None, 40, 40]


def test_a_finished_run_is_reported_without_its_data(real, tmp_path, monkeypatch):
    monkeypatch.setattr(Source, "engine", lambda self: pytest.fail("asked for the data"))
    report([real], tmp_path / "page.html")
    (shown,) = page_data(tmp_path / "page.html")["runs"]
    assert shown["wanted"] == "garment" and shown["finished"] and shown["notes"] == []
    assert [t["space"] for t in shown["tests"]] == ["garment", "department", "layer"]
    low, value, high = (shown["accuracy"]["garment"][k] for k in ("low", "value", "high"))
    assert low < value < high
    assert sum(shown["tests"][0]["confusion"]) == shown["tests"][0]["n"] == shown["accuracy"]["garment"]["n"]
    assert len(shown["estimates"]) == 2 and {c["space"] for c in shown["centers"][1:]} == {
        "department",
        "layer",
    }


def test_an_old_or_unfinished_run_is_computed_anew_or_says_what_is_missing(real, tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    shutil.copytree(real, bare)
    whole = Source(bare).reported("x").evaluation
    (bare / "evaluation.npz").unlink()
    (bare / "summary.json").unlink()
    before = sorted(p.name for p in bare.iterdir())
    again = Source(bare).reported("x")
    assert again.summary is None and again.notes == []
    assert np.array_equal(again.evaluation.tests[0].predicted, whole.tests[0].predicted)
    assert sorted(p.name for p in bare.iterdir()) == before  # a report writes nothing there

    def gone(self):
        raise FedmtError("data/x: no such folder")

    monkeypatch.setattr(Source, "engine", gone)
    report([bare], tmp_path / "page.html")
    (shown,) = page_data(tmp_path / "page.html")["runs"]
    assert "data/x: no such folder." in shown["notes"][0] and shown["tests"] == []
    assert shown["wanted"] == "garment" and len(shown["estimates"]) == 2  # M-hat is in the checkpoint
    assert shown["spaces"][1]["name"] == "space of 5 classes" and shown["estimates"][0]["truth"] is None
    assert "n" not in shown["accuracy"]["garment"] and len(shown["curves"]["round"]) == 3


def test_the_page_s_metrics_are_those_of_the_run(real, tmp_path):
    report([real], tmp_path / "page.html")
    data = page_data(tmp_path / "page.html")
    (shown,) = data["runs"]
    last = RunFolder(real).metrics()[-1]
    assert [m["name"] for m in data["metrics"]] == list(METRICS) and data["headline"] == "accuracy"
    for name in (n for n, m in METRICS.items() if m.function is not None):
        for space, result in shown["metrics"][name].items():
            assert result["value"] == pytest.approx(last[name][space], rel=1e-4), name
            assert result["low"] <= result["high"] and result["n"] == shown["tests"][0]["n"]
    assert set(shown["mean_matrix"]["auroc"]) == {"department", "layer"}
    test = shown["tests"][0]
    found = shown["by_class"]["sensitivity"]["garment"]
    right = [test["confusion"][k * 10 + k] / test["support"][k] for k in range(10)]
    assert found["value"] == pytest.approx(right, rel=1e-4) and len(found["low"]) == 10
    summary = json.loads((real / "summary.json").read_text())
    assert summary["metrics"]["accuracy"]["garment"]["value"] == last["accuracy"]["garment"]
    assert summary["by_class"].keys() == {n for n, m in METRICS.items() if m.by_class is not None}


def old_form(folder, tmp_path):
    """The run as an earlier version would have left it, with accuracy only and no measured metrics."""
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    records = []
    for r in RunFolder(folder).metrics():
        marked = {f"{s} (mean M)": v for s, v in r.get("mean_matrix", {}).get("accuracy", {}).items()}
        kept = {k: v for k, v in r.items() if k not in METRICS and k not in ("mean_matrix", "tests")}
        records.append({**kept, "accuracy": {**r["accuracy"], **marked}})
    (old / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    summary = json.loads((old / "summary.json").read_text())
    short = {k: v for k, v in summary.items() if k not in ("metrics", "mean_matrix", "by_class")}
    (old / "summary.json").write_text(json.dumps({**short, "accuracy": records[-1]["accuracy"]}))
    replace(read_evaluation(folder / "evaluation.npz"), measured=None).write(old / "evaluation.npz")
    return old


def test_a_run_of_an_earlier_version_is_read_as_today_s(real, tmp_path):
    old = old_form(real, tmp_path)
    assert "(mean M)" in (old / "metrics.jsonl").read_text()
    now, before = RunFolder(real).metrics()[-1], RunFolder(old).metrics()[-1]
    assert before["accuracy"] == now["accuracy"]
    assert before["mean_matrix"] == {"accuracy": now["mean_matrix"]["accuracy"]}
    assert RunFolder(old).summary()["accuracy"] == now["accuracy"]
    assert read_finished(old).value("mean_matrix.accuracy.layer") == pytest.approx(
        100 * now["mean_matrix"]["accuracy"]["layer"]
    )
    report([old], tmp_path / "old.html")
    report([real], tmp_path / "new.html")
    (then,), (today,) = (page_data(tmp_path / f"{n}.html")["runs"] for n in ("old", "new"))
    assert then["accuracy"]["garment"] == pytest.approx(today["accuracy"]["garment"], abs=2e-3)
    assert "(mean M)" not in json.dumps(then)
    assert then["curves"]["metrics"]["accuracy"] == today["curves"]["metrics"]["accuracy"]
    # From the stored probabilities, every metric is what the run itself computed.
    for name in ("auroc", "average_precision", "log_loss", "ece"):
        values = (r["metrics"][name]["garment"]["value"] for r in (then, today))
        assert next(values) == pytest.approx(next(values), abs=2e-5), name
    assert Follower(old).snapshot.data["runs"][0]["accuracy"] == then["accuracy"]


def test_images_only_when_asked_for(real, tmp_path):
    report([real], tmp_path / "without.html")
    assert "data:image/png" not in (tmp_path / "without.html").read_text()
    report([real], tmp_path / "with.html", with_images=True)
    (shown,) = page_data(tmp_path / "with.html")["runs"]
    mistakes = shown["mistakes"]["garment"]
    assert len(mistakes) == 12 and all(m["true"] != m["predicted"] for m in mistakes)
    assert all(m["image"].startswith("data:image/png;base64,") for m in mistakes)
    confidence = [m["confidence"] for m in mistakes]
    assert confidence == sorted(confidence, reverse=True)


def test_confident_mistakes_come_first():
    scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.3, 0.7]], np.float16)
    tested = Predicted("s", np.array([1, 0, 0, 0]), scores.argmax(1), scores)
    assert confident_mistakes(tested) == [0, 3, 1] and confident_mistakes(tested, 1) == [0]


def test_a_temperature_revives_what_a_confident_model_hardly_believed():
    """A hundred small probabilities of 1e-12 are 1e-3 each at a temperature of 4, and a tenth in total."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 100)) * 6)
    for temperature in (0.5, 2.0, 4.0):
        found = at_temperature(logits.softmax(1).float().numpy(), temperature)
        np.testing.assert_allclose(found, (logits / temperature).softmax(1).numpy(), atol=1e-6)
    # An earlier file has float16, where what is below 3e-8 is 0.
    old = at_temperature(np.array([[1.0, 0.0]], np.float16), 4.0)
    assert old[0, 1] == pytest.approx(0.01, rel=0.02)


def test_centers_and_what_they_missed(make_run, tmp_path):
    made = Source(make_run(tmp_path / "run", rounds=20)).reported("run")
    shown = content("t", "", [made])["runs"][0]
    center = shown["centers"][1]
    records = [r["centers"]["center-0"] for r in made.metrics if r["centers"]]
    assert center["missed"]["dropped out"] == sum("absent" in r for r in records) > 0
    assert center["missed"]["abstained"] == sum("abstained" in r for r in records) > 0
    assert center["reasons"] == {"no sample is confident": center["missed"]["abstained"]}
    assert center["trained"] + sum(center["missed"].values()) == 20
    assert len(shown["truths"]) == 1  # shared by four centers, but stored once


def test_a_given_m_and_the_privacy_spent_are_shown(make_run, tmp_path):
    made = Source(make_run(tmp_path / "run", estimated=False)).reported("run")
    spending = [
        {**r, "centers": {n: {**c, "privacy_spent": r["round"] / 4} for n, c in r["centers"].items()}}
        for r in made.metrics
    ]
    settings = {**made.settings, "privacy": {"epsilon": 3.0}}
    (shown,) = content("t", "", [replace(made, metrics=spending, settings=settings)])["runs"]
    assert shown["centers"][1]["privacy"] == {"spent": 2.0, "of": 3.0}
    assert "privacy" not in shown["centers"][0]
    assert shown["estimates"] == [] and shown["method"] == "fedmt, M given"
    assert [(g["center"], g["space"], g["truth"]) for g in shown["given"]] == [
        (f"center-{c}", "coarse", 0) for c in range(4)
    ]
    # A method that does not use M shows none, even if one is known.
    alone = {**made.settings, "method": {"name": "single"}}
    (shown,) = content("t", "", [replace(made, settings=alone)])["runs"]
    assert shown["given"] == [] and shown["truths"] == []


def test_the_page_is_whole_and_names_are_only_text(make_run, tmp_path):
    made = Source(make_run(tmp_path / "run")).reported("</script><b>")
    page = render(content("<i>title", "", [made]))
    assert "</script><b>" not in page and "<i>title" not in page
    assert "connect-src 'none'" in page and 'data-live=""' in page
    assert "connect-src 'self'" in render(content("t", "", [made]), live="data.json")
    bad = [{**made.metrics[-1], "reference_loss": float("nan")}]
    render(content("t", "", [replace(made, metrics=bad)]))


def test_short_names_that_differ(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert distinct(paths) == ["a/run", "b/run"] and distinct(paths[:1]) == ["run"]
    with pytest.raises(FedmtError, match="more than once"):
        distinct([paths[0], paths[0]])


def test_the_command(make_run, tmp_path, monkeypatch, capsys):
    def invoke(*arguments):
        monkeypatch.setattr("sys.argv", ["fedmt", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr()

    folder = make_run(tmp_path / "run")
    status, printed = invoke("report", folder, "--out", tmp_path / "x.html", "--title", "My title")
    assert (
        status == 0 and "x.html" in printed.out and "<h1>My title</h1>" in (tmp_path / "x.html").read_text()
    )
    status, printed = invoke("report", tmp_path)
    assert status == 2 and "is not a run folder" in printed.err
    status, printed = invoke("report", tmp_path / "nothing")
    assert status == 2 and "there is no such run folder" in printed.err
    status, printed = invoke("watch", tmp_path)
    assert status == 2 and "is not a run folder" in printed.err
    (folder / "metrics.jsonl").write_text("")
    status, printed = invoke("report", folder)
    assert status == 2 and "no round has finished yet" in printed.err
    status, printed = invoke("report", folder, "--out", tmp_path / "no" / "x.html")
    assert status == 2


def test_results_for_other_class_frequencies(tmp_path):
    """By hand: 4 samples, 3 of the frequent class. Predictions for even classes get one of them wrong."""
    probabilities = np.array([[0.6, 0.4], [0.7, 0.3], [0.4, 0.6], [0.3, 0.7]])
    test = Predicted("wanted", np.array([0, 0, 0, 1]), probabilities.argmax(1), probabilities)
    priors = {"own": [0.5, 0.5], "reference": [0.51, 0.49], "centers": [0.8, 0.2]}
    made = Evaluation(1, {"wanted": ("a", "b")}, [], [test], priors=priors)
    made.write(tmp_path / "evaluation.npz")
    found = for_priors(read_evaluation(tmp_path / "evaluation.npz"))
    # 0.6 / 0.4 < 4, so the third and fourth are now "a". The reference center's frequencies hardly differ.
    (other,) = found["others"]
    assert found["own"] == "equally frequent" and other["prior"] == "as frequent as at the centers"
    assert other["accuracy"] == 0.75 and other["balanced_accuracy"] == 0.5
    members = [Member(name, None, None, 9) for name in ("reference", "x", "y", "z")]
    some = replace(made, members=members, center_priors={"x": [0.9, 0.1], "z": [0.7, 0.3]})
    (other,) = for_priors(some)["others"]
    assert other["prior"] == "as frequent as at the centers (the mean of 2 of 3 centers)"
    as_trained = replace(made, priors={"own": [0.8, 0.2], "reference": [0.8, 0.2]})
    found = for_priors(as_trained)
    assert found["own"] == "as frequent as at the reference center"
    assert [o["prior"] for o in found["others"]] == ["equally frequent"]
    assert for_priors(replace(made, priors={})) is None and for_priors(None) is None


def test_equal_frequencies_are_called_so_even_if_they_are_those_of_the_reference_center():
    """The run stores float32, in which a tenth is not the tenth of float64."""
    tenth = np.full((2, 10), 0.1)
    test = Predicted("wanted", np.array([0, 1]), tenth.argmax(1), tenth)
    stored = torch.full((10,), 0.1).tolist()
    made = Evaluation(1, {"wanted": tuple("abcdefghij")}, [], [test], priors={"own": stored})
    for priors in ({"own": stored, "reference": stored}, {"own": [0.1] * 10, "reference": stored}):
        # There are no others, but which frequencies apply is said.
        assert for_priors(replace(made, priors=priors)) == {"own": "equally frequent", "others": []}
    nearly = [0.1 + 1e-4, 0.1 - 1e-4, *[0.1] * 8]
    found = for_priors(replace(made, priors={"own": nearly, "reference": nearly}))
    assert found == {"own": "as frequent as at the reference center", "others": []}


@pytest.mark.parametrize("temperature", [None, 2.5, 0.4])
def test_results_for_other_class_frequencies_are_those_of_the_predictor(tiny_run, tmp_path, temperature):
    """The temperature comes before the prior, so it matters for the class that is chosen."""
    model = load(tiny_run("fedmt"), "cpu")
    wanted, count = model.description.wanted, len(model.classes())
    part = read_fashion_mnist("test")
    images, labels = part.images[:500], part.labels["garment"][:500]
    plain = model.predict(images).numpy()
    test = Predicted(wanted.name, labels.numpy(), plain.argmax(1), plain)
    uneven = [0.5 + 0.5 / count, *[0.5 / count] * (count - 1)]
    priors = {"own": [1 / count] * count, "centers": uneven}
    made = Evaluation(1, {wanted.name: wanted.classes}, [], [test], priors=priors)
    calibration = None if temperature is None else {"temperature": temperature}
    used = Model(replace(model.description, calibration=calibration), model.state)
    chosen = used.predict(images, prior=uneven).argmax(1)
    (other,) = for_priors(made, temperature)["others"]
    assert other["accuracy"] == pytest.approx((chosen == labels).double().mean().item(), abs=1e-5)
    each = [(chosen[labels == k] == k).double().mean().item() for k in range(count)]
    assert other["balanced_accuracy"] == pytest.approx(np.mean(each), abs=1e-5)
    if temperature is not None:
        assert other != for_priors(made)["others"][0]


def test_the_page_has_results_for_other_class_frequencies_at_the_temperature(make_run, tmp_path):
    folder = make_run(tmp_path / "hot", temperature=2.5)
    made = read_evaluation(folder / "evaluation.npz")
    report([folder], tmp_path / "page.html")
    (run,) = page_data(tmp_path / "page.html")["runs"]
    assert run["priors"] == for_priors(made, 2.5) != for_priors(made)


def test_the_priors_of_a_run_are_in_its_evaluation(real, tmp_path):
    found = read_evaluation(real / "evaluation.npz").priors
    assert found["own"] == pytest.approx([0.1] * 10) and found["reference"] == pytest.approx([0.1] * 10)
    assert sum(found["centers"]) == pytest.approx(1) and found["centers"] != found["own"]
    each = read_evaluation(real / "evaluation.npz").center_priors
    assert len(each) == 2 and all(sum(shares) == pytest.approx(1) for shares in each.values())
    model = load(real, "cpu")
    assert list(model.priors["centers"].values()) == pytest.approx(found["centers"], abs=1e-6)
    report([real], tmp_path / "page.html")
    (run,) = page_data(tmp_path / "page.html")["runs"]
    assert run["centers"][1]["prior_error"] > 0 and "prior_error" in run["curves"]
    assert len(run["centers"][1]["prior"]) == 10 and "prior" not in run["centers"][0]


def test_samples_are_called_by_their_own_word():
    def run(**settings: str) -> ReportedRun:
        return ReportedRun("a", [], settings)

    assert word([run(input="tables")]) == "row" and word([run(input="text")] * 2) == "text"
    assert word([run()]) == "image" and word([run(), run(input="vectors")]) == "sample"
