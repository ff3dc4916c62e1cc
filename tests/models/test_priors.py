"""Predictions are adjusted to the class frequencies that the user names."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedmt
from fedmt import FedmtError
from fedmt.engines.state import State
from fedmt.methods import FedMT, Training
from fedmt.models.description import Description, describe
from fedmt.models.export.onnx import metadata
from fedmt.models.export.safetensors import export_safetensors
from fedmt.privacy import PrivacySpec

SKEWED = torch.tensor([0.46] + [0.06] * 9)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (6, 1, 28, 28), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.fixture
def model(tiny_run) -> fedmt.Model:
    return fedmt.load(tiny_run("fedmt"), "cpu")


def with_reference(model: fedmt.Model, adjusted: bool) -> fedmt.Model:
    """The same network, as if its reference center had uneven classes, with and without logit adjustment."""
    priors = {"reference": tuple(SKEWED.tolist())}
    return fedmt.Model(replace(model.description, adjusted=adjusted, priors=priors), model.state)


def reweighted(probabilities: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Bayes' rule in float64."""
    mass = probabilities.double() * factor.double()
    return (mass / mass.sum(1, keepdim=True)).float()


def test_the_default_is_uniform_and_changes_no_bit(model, images) -> None:
    plain = model.predict(images)
    assert model.prior is not None and model.prior.name == "uniform"
    assert torch.equal(model.predict(images, prior="uniform"), plain)
    assert torch.equal(model.predict(images, prior=[0.1] * 10), plain)
    views = model.input.plain(images)
    assert torch.equal(model.predictor().networks[0](views).float().softmax(1), plain)


def test_bayes_rule_after_the_temperature(model, images) -> None:
    hot = fedmt.Model(replace(model.description, calibration={"temperature": 2.5}), model.state)
    torch.testing.assert_close(
        hot.predict(images, prior=SKEWED), reweighted(hot.predict(images), SKEWED), atol=1e-6, rtol=1e-5
    )
    logits = hot.predictor().networks[0](hot.input.plain(images))
    torch.testing.assert_close(
        hot.predict(images, prior=SKEWED), (logits / 2.5 + SKEWED.log()).softmax(1), atol=1e-6, rtol=1e-5
    )


def test_every_way_to_say_the_same_and_the_other_spaces_follow(model, images, tmp_path: Path) -> None:
    names = model.classes()
    shares = dict(zip(names, SKEWED.tolist(), strict=True))
    table, toml = tmp_path / "shares.csv", tmp_path / "shares.toml"
    table.write_text("class,share\n" + "".join(f"{n},{s:.6f}\n" for n, s in reversed(shares.items())))
    toml.write_text("".join(f'"{n}" = {s:.6f}\n' for n, s in shares.items()))
    expected = model.predict(images, prior=shares)
    by_name, by_place = pd.Series(shares)[::-1], pd.Series(SKEWED.tolist())[::-1]
    for given in (
        SKEWED,
        SKEWED.numpy().astype(np.float64),
        SKEWED.tolist(),
        table,
        str(toml),
        by_name,
        by_place,
    ):
        torch.testing.assert_close(model.predict(images, prior=given), expected, atol=1e-6, rtol=1e-5)
    (top,) = model.predict(images[:1], top=10, prior=shares)
    assert dict(top) == pytest.approx(dict(zip(names, expected[0].tolist(), strict=True)))
    layer = expected @ model.predictor().matrix("layer").T
    torch.testing.assert_close(model.predict(images, "layer", prior=shares), layer)


def test_a_model_that_was_not_adjusted_answers_for_its_reference_center(model, images) -> None:
    plain, trained = model.predict(images), with_reference(model, adjusted=False)
    assert trained.prior is not None and trained.prior.name == "reference"
    assert torch.equal(trained.predict(images), plain)
    assert torch.equal(trained.predict(images, prior="reference"), plain)
    torch.testing.assert_close(trained.predict(images, prior="uniform"), reweighted(plain, 1 / SKEWED))
    adjusted = with_reference(model, adjusted=True)
    torch.testing.assert_close(adjusted.predict(images, prior="reference"), reweighted(plain, SKEWED))


def test_the_centers_prior_is_the_mean_of_their_estimates_by_size(model, images) -> None:
    """If a size is unknown, as over Flower without share_prior, all centers count the same."""
    members = model.description.roster.members
    kept = dict(model.state.kept)
    assert all(set(kept[m.name]) >= {"prior"} for m in members)
    each = [torch.eye(10)[i] for i in range(len(members))]
    sizes = (1, 2, 5)
    roster = replace(
        model.description.roster,
        members=tuple(replace(m, size=s) for m, s in zip(members, sizes, strict=True)),
    )
    kept = {m.name: {"prior": p} for m, p in zip(members, each, strict=True)}

    def shares(roster=roster, kept=kept) -> list[float]:
        about = replace(model.description, roster=roster)
        found = fedmt.Model(about, State(1, model.state.weights, {}, kept))
        return list(found.priors["centers"].values())

    assert shares()[:4] == [0.125, 0.25, 0.625, 0]
    unknown = replace(roster, members=tuple(replace(m, size=None) for m in roster.members))
    assert shares(unknown)[:3] == pytest.approx([1 / 3] * 3, abs=1e-6)
    sent = {n: {**k, "size": torch.tensor(s)} for (n, k), s in zip(kept.items(), sizes, strict=True)}
    assert shares(unknown, sent)[:3] == [0.125, 0.25, 0.625]
    del kept[members[0].name]
    assert shares(roster, kept)[1:3] == pytest.approx([2 / 7, 5 / 7], abs=1e-6)


def estimated_by(model: fedmt.Model, count: int, of: int = 3) -> fedmt.Model:
    """The same model, if `count` of `of` centers have an estimate that is known here."""
    members = model.description.roster.members[:of]
    kept = {m.name: {"prior": SKEWED.roll(i)} for i, m in enumerate(members[:count])}
    about = replace(model.description, roster=replace(model.description.roster, members=members))
    return fedmt.Model(about, State(model.round, model.state.weights, {}, kept))


def test_a_mean_of_some_centers_says_so_and_travels_with_it(model, tmp_path: Path, images) -> None:
    assert len(model.description.roster.members) == 3
    words = {n: estimated_by(model, n).answering_for("centers").prior.words for n in (2, 3)}
    assert words[3] == "classes as frequent as at the centers"
    assert words[2] == "classes as frequent as at the centers (the mean of 2 of 3 centers)"
    path = tmp_path / "model.safetensors"
    card = export_safetensors(estimated_by(model, 2), tmp_path, path)
    again = fedmt.load(path, "cpu")
    assert again.prior.name == "uniform" and again.answering_for("centers").prior.words == words[2]
    export_safetensors(estimated_by(model, 2).answering_for("centers"), tmp_path, path)
    assert fedmt.load(path, "cpu").prior.words == words[2]
    assert json.loads(card.read_text())["prior"]["answers_for"] == words[2]


def test_the_estimate_of_one_of_several_centers_is_not_called_theirs(model, tmp_path: Path, images) -> None:
    """The exported file would contain exactly this estimate."""
    alone, path = estimated_by(model, 1), tmp_path / "model.safetensors"
    export_safetensors(alone, tmp_path, path)
    for found in (alone, fedmt.load(path, "cpu")):
        assert "centers" not in found.priors
        with pytest.raises(FedmtError, match="estimate of only 1 of 3 centers is known, and it is not used"):
            found.predict(images, prior="centers")
    only = estimated_by(model, 1, of=1)  # where there is one center, it is the centers
    assert list(only.priors["centers"].values()) == pytest.approx(SKEWED.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": "ignored"}, "method.prior = 'ignored', so no center"),
        ({"prior": "estimated"}, r"center.toml has share_prior = true, and those with \[privacy\] have none"),
    ],
)
def test_an_unknown_prior_says_why(model, images, options, message: str) -> None:
    about = replace(model.description, method={**model.description.method, **options})
    without = fedmt.Model(about, State(1, model.state.weights))
    with pytest.raises(FedmtError, match=message):
        without.predict(images, prior="centers")
    assert "centers" not in without.priors


def test_with_privacy_it_is_not_for_want_of_sharing(make_federation, play, tmp_path: Path) -> None:
    """A private center may not share its prior, so the error must not ask for it."""
    training = Training(rounds=1, warmup_epochs=1, batch_norm="static-reference")
    spec = PrivacySpec(epsilon=8, delta=1e-4)
    federation, method = make_federation(samples=40), FedMT(training, xi=0.0, privacy=spec)
    (*_, state), _ = play(federation, method)
    about = describe(federation, method, "small_cnn", None)
    model = fedmt.Model(Description.from_json(json.dumps(about.to_json()), "model.json"), state)
    with pytest.raises(FedmtError, match=r"trained with \[privacy\], so no center estimated") as error:
        model.predict(federation.tests[0].values[:2], prior="centers")
    assert "share_prior" not in str(error.value)


def test_an_assumed_prior_is_the_centers(model) -> None:
    shares = dict(zip(model.classes(), SKEWED.tolist(), strict=True))
    for given, expected in ((shares, SKEWED.tolist()), ("uniform", [0.1] * 10)):
        about = replace(model.description, method={**model.description.method, "prior": given})
        found = fedmt.Model(about, State(1, model.state.weights)).priors["centers"]
        assert list(found.values()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "referense",
            "none of 'uniform', 'reference', 'centers', and there is no such file. Did you mean 'reference'",
        ),
        ("nowhere.csv", "nowhere.csv: the table cannot be read"),
        ([0.5, 0.5], r"an array of shape \(2,\), expected one share for each of the 10 classes"),
        (3, r"a single number \(3\), expected one share for each of the 10 classes"),
        ([0.2] * 10, "the shares sum to 2, expected 1"),
        ({"coat": 1.0}, "no share for"),
        ({1: 1.0}, "'1' is not in label space 'garment'"),
        ({"cape": 1.0}, "'cape' is not in label space 'garment'"),
        ({"coat": "much"}, "the share of 'coat' is 'much', expected a number"),
        ({"coat": True}, "the share of 'coat' is True, expected a number from 0 to 1"),
        ("", "'' is none of 'uniform', 'reference', 'centers', and there is no such file"),
        (object(), "an object of type object; expected 'uniform'"),
    ],
)
def test_what_is_no_prior(model, images, given, message: str) -> None:
    with pytest.raises(FedmtError, match=message):
        model.predict(images, prior=given)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.csv", "class,share\ncoat,half\n", "s.csv, line 2: share 'half', expected a number"),
        ("s.csv", "class,share\ncoat,0.5\ncoat,0.5\n", "s.csv, line 3: class 'coat' has a share already"),
        ("s.csv", "label,share\ncoat,1\n", "s.csv, line 1: no column 'class'"),
        ("s.toml", "ankle boot = 1\n", "s.toml: not valid TOML.* in double quotes"),
        ("s.txt", "coat 1", "s.txt: expected a table of class frequencies"),
    ],
)
def test_what_is_no_file_of_shares(model, images, tmp_path: Path, name, text, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FedmtError, match=message):
        model.predict(images, prior=tmp_path / name)


def test_a_head_of_its_own_knows_no_prior(tiny_run, images) -> None:
    model = fedmt.load(tiny_run("fedtrans"), "cpu")
    assert model.predict(images, prior="reference").shape == (6, 10)
    with pytest.raises(FedmtError, match="'layer' has its own head"):
        model.predict(images, "layer", prior="reference")
    with pytest.raises(FedmtError, match="With method 'fedtrans', centers do not estimate"):
        model.predict(images, prior="centers")


def test_a_model_of_an_earlier_version_keeps_its_answers(model, images) -> None:
    raw = model.description.to_json()
    for key in ("adjusted", "priors"):
        del raw[key]
    old = fedmt.Model(Description.from_json(json.dumps(raw), "model.json"), model.state)
    assert old.prior is None and torch.equal(old.predict(images), model.predict(images))
    with pytest.raises(FedmtError, match="earlier version of fedmt wrote this model"):
        old.predict(images, prior="uniform")


# -- exported, and on the command line ------------------------------------------------------------


def test_the_prior_travels_in_an_exported_model(tiny_run, tmp_path: Path, command, images) -> None:
    folder, path = tiny_run("fedmt"), tmp_path / "model.safetensors"
    status, said, _ = command("export", folder, "--safetensors", path, "--prior", "centers")
    assert status == 0 and "probabilities are for classes as frequent as at the centers" in said
    one, two = fedmt.load(folder, "cpu"), fedmt.load(path, "cpu")
    assert torch.equal(two.predict(images), one.predict(images, prior="centers"))
    assert torch.equal(two.predict(images, prior="uniform"), one.predict(images))
    assert two.priors == one.priors  # the centers' mean, without any center's own estimate
    assert not any("prior" in own for own in two.state.kept.values())
    card = json.loads((tmp_path / "model.card.json").read_text())
    assert card["prior"]["name"] == "centers" and card["prior"]["shares"] == one.priors["centers"]
    assert any("measured with answers for equally frequent classes" in limit for limit in card["limits"])
    told = json.loads(metadata(two)["fedmt.prior"])
    assert told["name"] == "centers" and len(told["shares"]) == 10
    assert torch.equal(two.predictor()(images)[0], two.predict(images))  # this becomes the ONNX graph


@pytest.mark.parametrize(
    ("adjusted", "words"),
    [(True, "equally frequent classes"), (False, "classes as frequent as at the reference center")],
)
def test_predict_and_export_say_which_prior_applies_by_default(
    tiny_run, tmp_path: Path, command, images, adjusted: bool, words: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(tiny_run("fedmt"), folder)
    raw = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**raw, "adjusted": adjusted}))
    Image.fromarray(images[0, 0].numpy()).save(tmp_path / "one.png")
    _, _, said = command("predict", folder, tmp_path / "one.png")
    assert f"Note: the probabilities are for {words}.\n" in said
    _, _, said = command("predict", folder, tmp_path / "one.png", "--space", "layer")
    assert f"Note: the probabilities follow from those in 'garment' for {words}.\n" in said
    _, said, _ = command("export", folder, "--safetensors", tmp_path / "model.safetensors")
    assert f"The exported model's probabilities are for {words}.\n" in said


def test_predict_says_no_prior_for_a_head_of_its_own(tiny_run, tmp_path: Path, command, images) -> None:
    Image.fromarray(images[0, 0].numpy()).save(tmp_path / "one.png")
    _, _, said = command("predict", tiny_run("fedrep"), tmp_path / "one.png", "--space", "layer")
    assert "not calibrated" in said and "probabilities are for" not in said and "follow from" not in said


@pytest.mark.parametrize("name", ["fedrep", "fedtrans"])
def test_an_export_says_where_its_prior_does_not_apply(tiny_run, tmp_path: Path, command, name: str) -> None:
    path = tmp_path / "model.safetensors"
    status, said, _ = command("export", tiny_run(name), "--safetensors", path, "--prior", "reference")
    assert status == 0 and "in 'garment' are for classes as frequent as at the reference center." in said
    assert "Those in 'department', 'layer' are from separate heads, to which this does not apply." in said
    assert json.loads((tmp_path / "model.card.json").read_text())["prior"]["label_spaces"] == ["garment"]


def test_the_step_after_an_export_has_its_prior(tiny_run, tmp_path: Path, command, monkeypatch) -> None:
    """A run folder does not know it, and an exported file does."""
    monkeypatch.setattr("fedmt.models.export.onnx.export_onnx", lambda model, path: None)
    folder, onnx, file = tiny_run("fedmt"), tmp_path / "model.onnx", tmp_path / "model.safetensors"
    _, said, _ = command("export", folder, "--onnx", onnx, "--prior", "reference")
    assert said.endswith(f"Next: fedmt predict {folder} SAMPLES --prior reference\n")
    _, said, _ = command("export", folder, "--onnx", onnx, "--safetensors", file, "--prior", "reference")
    assert said.endswith(f"Next: fedmt predict {file} SAMPLES\n")


def test_predict_for_a_prior_on_the_command_line(tiny_run, tmp_path: Path, command, images) -> None:
    folder = tiny_run("fedmt")
    Image.fromarray(images[0, 0].numpy()).save(tmp_path / "one.png")
    shares = tmp_path / "shares.csv"
    shares.write_text(
        "class,share\n" + "".join(f"{n},{1.0 if n == 'coat' else 0}\n" for n in fedmt.load(folder).classes())
    )
    status, printed, said = command("predict", folder, tmp_path / "one.png", "--prior", shares, "--top", "1")
    assert status == 0 and ",coat,0.9" in printed
    assert "the probabilities are for the class frequencies that were given" in said
    status, _, said = command("predict", folder, tmp_path / "one.png", "--prior", "center")
    assert status == 2 and "Did you mean 'centers'?" in said and "Traceback" not in said
