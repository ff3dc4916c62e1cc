"""Temperature scaling: the fit, the measure, and that a run calibrates only on what it held out."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fedmt
from fedmt import FedmtError
from fedmt.config import load_config, parse_config
from fedmt.data.holding import hold_out
from fedmt.data.specs import CalibrationSpec
from fedmt.methods import Single, Training
from fedmt.metrics.calibration_error import expected_calibration_error
from fedmt.models.calibrating import calibrate
from fedmt.models.description import describe
from fedmt.models.temperature import HIGHEST, LOWEST, fit_temperature, judged
from fedmt.runs.folder import RunFolder
from fedmt.training.run import Silent, run


@pytest.mark.parametrize("truth", [0.3, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(truth: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 6, generator=generator)
    labels = torch.multinomial((logits / truth).softmax(1), 1, generator=generator).flatten()
    assert fit_temperature(logits, labels) == pytest.approx(truth, rel=0.05)


def test_it_is_the_minimum() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(200, 5, generator=generator)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator).flatten()
    best = fit_temperature(logits, labels)
    loss = F.cross_entropy(logits / best, labels)
    for other in (0.9, 0.99, 1.01, 1.1):
        assert loss <= F.cross_entropy(logits / (best * other), labels)


def test_a_temperature_that_the_data_does_not_bound_stays_within_bounds() -> None:
    logits = torch.tensor([[5.0, 0.0]] * 4)
    assert fit_temperature(logits, torch.zeros(4, dtype=torch.int64)) == pytest.approx(LOWEST, rel=1e-3)
    assert fit_temperature(logits, torch.ones(4, dtype=torch.int64)) == pytest.approx(HIGHEST, rel=1e-3)


def test_calibration_error_by_hand() -> None:
    """Two bins: 0.9 confident and right half the time, and 0.6 confident and always right."""
    probabilities = torch.tensor([[0.9, 0.1]] * 2 + [[0.6, 0.4]] * 2)
    labels = torch.tensor([0, 1, 0, 0])
    expected = (2 * abs(0.5 - 0.9) + 2 * abs(1 - 0.6)) / 4
    assert expected_calibration_error(probabilities, labels).item() == pytest.approx(expected)
    assert expected_calibration_error(probabilities, labels, bins=1).item() == pytest.approx(0, abs=1e-7)


def test_judged_compares_with_no_temperature() -> None:
    logits, labels = torch.tensor([[4.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
    found = judged(logits, labels, 4 / math.log(3))
    assert found["samples"] == 4 and found["ece_after"] < 1e-6 < found["ece_before"]
    assert found["nll_after"] < found["nll_before"]


def test_what_is_held_out_is_not_trained_on(make_federation) -> None:
    federation = make_federation(per_class=4)
    spec = CalibrationSpec(share=0.5, minimum=20)
    parted, note = hold_out(federation, spec, seed=1)
    assert parted.held_out is not None and "20 of the reference center's 40" in note
    assert len(parted.held_out) == len(parted.reference) == 20
    assert parted.held_out.labels.bincount().tolist() == [2] * 10
    together = torch.cat([parted.reference.images, parted.held_out.images]).flatten(1)
    assert _sorted(together) == _sorted(federation.reference.images.flatten(1))
    again, _ = hold_out(federation, spec, seed=1)
    other, _ = hold_out(federation, spec, seed=2)
    assert torch.equal(again.held_out.images, parted.held_out.images)
    assert not torch.equal(other.held_out.images, parted.held_out.images)


def _sorted(rows: torch.Tensor) -> list[list[int]]:
    return sorted(rows.tolist())


def test_too_few_are_not_held_out(make_federation) -> None:
    federation = make_federation(per_class=4)
    whole, note = hold_out(federation, CalibrationSpec(share=0.5, minimum=21), seed=1)
    assert whole is federation and "None are held out" in note
    few, _ = hold_out(make_federation(per_class=1), CalibrationSpec(share=0.99, minimum=2), seed=1)
    assert few.held_out is None  # a class never loses its last image


def test_a_run_says_what_the_temperature_did(tiny_run) -> None:
    folder = tiny_run("fedmt-estimated")
    found = json.loads((folder / "summary.json").read_text())["calibration"]
    assert found["held_out"]["samples"] == 40 and found["test"]["samples"] == 200
    assert found["held_out"]["nll_after"] <= found["held_out"]["nll_before"]
    model = fedmt.load(folder, "cpu")
    assert model.temperature == pytest.approx(found["temperature"]) and model.temperature != 1
    assert model.description.roster.reference.size == 40
    plain = fedmt.Model(
        type(model.description)(**{**vars(model.description), "calibration": None}), model.state
    )
    assert not plain.calibrated() and model.calibrated() and model.calibrated("layer")
    images = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8)
    scaled = (plain.predict(images).log() / model.temperature).softmax(1)
    torch.testing.assert_close(model.predict(images), scaled)
    matrix = model.predictor().matrix("layer")
    torch.testing.assert_close(model.predict(images, "layer"), scaled @ matrix.T)


def test_resuming_a_finished_run_keeps_the_temperature(tiny_run, tmp_path: Path, command) -> None:
    folder = tmp_path / "run"
    shutil.copytree(tiny_run("fedmt-estimated"), folder)
    config = load_config(folder / "config.toml")
    images = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8)
    written, predicted = (folder / "model.json").read_bytes(), fedmt.load(folder, "cpu").predict(images)
    summary = run(config, folder, resume=True)
    assert (folder / "model.json").read_bytes() == written
    model = fedmt.load(folder, "cpu")
    assert model.temperature == summary["calibration"]["temperature"]
    assert torch.equal(model.predict(images), predicted)
    command("export", folder, "--safetensors", tmp_path / "model.safetensors")
    card = json.loads((tmp_path / "model.card.json").read_text())
    assert card["calibration"]["temperature"] == model.temperature
    # A run whose temperature was removed by an earlier version gets it back.
    raw = {**json.loads(written), "calibration": None}
    (folder / "model.json").write_text(json.dumps(raw))
    run(config, folder, resume=True)
    assert (folder / "model.json").read_bytes() == written


def test_a_finished_run_without_its_last_weights_is_calibrated_again(tiny_run, tmp_path: Path) -> None:
    """Until then, the temperature would belong to other weights."""
    folder = tmp_path / "run"
    shutil.copytree(tiny_run("fedmt-estimated"), folder)
    written = (folder / "model.json").read_bytes()
    (folder / "checkpoints" / "round-000001.safetensors").unlink()
    between = []

    class Watching(Silent):
        def round(self, record) -> None:
            between.append(json.loads((folder / "model.json").read_text())["calibration"])

    run(load_config(folder / "config.toml"), folder, resume=True, observer=Watching())
    assert between == [None] and (folder / "model.json").read_bytes() == written


def test_a_run_without_calibration_has_no_trace_of_it(tiny_run) -> None:
    folder = tiny_run("fedmt")
    assert "calibration" not in (folder / "config.toml").read_text()  # so that older runs resume
    assert "calibration" not in json.loads((folder / "summary.json").read_text())
    assert fedmt.load(folder, "cpu").temperature is None


def test_heads_of_other_spaces_are_not_called_calibrated(tiny_run) -> None:
    model = fedmt.load(tiny_run("fedtrans"), "cpu")
    scaled = fedmt.Model(
        type(model.description)(**{**vars(model.description), "calibration": {"temperature": 3.0}}),
        model.state,
    )
    assert scaled.calibrated() and not scaled.calibrated("layer")
    images = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8)
    torch.testing.assert_close(scaled.predict(images, "layer"), model.predict(images, "layer"))
    assert not torch.allclose(scaled.predict(images), model.predict(images))


def test_copies_of_held_out_images_are_refused() -> None:
    benchmark = {
        "data": {"source": "fashion_mnist"},
        "wanted": "garment",
        "spaces": {"layer": 1},
        "reference_share": 0.1,
        "augment_to": [[100, 200]],
    }
    with pytest.raises(FedmtError, match=r"calibration: with benchmark\.augment_to"):
        parse_config({"benchmark": benchmark, "calibration": {}})


def test_the_temperature_is_fitted_for_the_prior_of_the_held_out_samples() -> None:
    """Logits for a uniform prior, and labels from a place with another one: without its shift, T is wrong."""
    generator = torch.Generator().manual_seed(2)
    prior, truth = torch.tensor([0.05, 0.15, 0.8], dtype=torch.float64), 2.0
    labels = torch.multinomial(prior, 20_000, replacement=True, generator=generator)
    means = torch.diag(torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64))
    samples = means[labels] + torch.randn(len(labels), 3, generator=generator, dtype=torch.float64)
    exact = samples @ means.T - (means**2).sum(1) / 2  # log p(x | k), up to a constant, of unit normals
    assert fit_temperature(truth * exact, labels, prior.log()) == pytest.approx(truth, rel=0.03)
    assert abs(fit_temperature(truth * exact, labels) - truth) > 0.1
    found = judged(truth * exact, labels, truth, prior.log())
    assert found["ece_after"] < 0.01 < found["ece_before"]


@pytest.mark.parametrize("adjusted", [True, False])
def test_a_run_calibrates_for_its_reference_center(
    make_federation, make_engine, tmp_path: Path, adjusted: bool
) -> None:
    """It shifts from the model's prior, which is uniform if training was adjusted, to that center's prior."""
    federation, _ = hold_out(make_federation(per_class=8), CalibrationSpec(share=0.5, minimum=20), seed=1)
    few = federation.reference.labels.argsort()[7:]  # uneven: 0 and 1 of the first two classes, 4 of the rest
    reference = federation.reference
    uneven = replace(reference, values=reference.values[few], labels=reference.labels[few])
    federation = replace(federation, reference=uneven)
    method = Single(Training(rounds=1, warmup_epochs=1, logit_adjustment=adjusted))
    state, _ = make_engine(federation, method).start()
    folder = RunFolder.create(tmp_path / "run", "")
    folder.save(state)
    about = describe(federation, method, "small_cnn", None)
    found = calibrate(folder, about, federation, torch.device("cpu"))
    held = federation.held_out
    logits = fedmt.Model(about, state).predict(held.images).double().log()
    shares = (uneven.labels.bincount(minlength=10).double() + 1) / (len(uneven) + 10)
    shift = shares.log() if adjusted else torch.zeros(10)
    assert found["temperature"] == pytest.approx(fit_temperature(logits, held.labels, shift), rel=1e-4)
    assert (abs(found["temperature"] / fit_temperature(logits, held.labels) - 1) > 1e-3) == adjusted
    assert found["held_out"]["nll_after"] == pytest.approx(
        F.cross_entropy(logits / found["temperature"] + shift, held.labels).item(), rel=1e-4
    )
