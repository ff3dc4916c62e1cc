"""Runs are compared only if they were tested on the same samples."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmt.core.errors import FedmtError
from fedmt.metrics.comparing import differences
from fedmt.runs.comparison import compare, probabilities
from fedmt.runs.evaluation import Evaluation, Predicted, read_evaluation

SPACES = {"lesion": ["melanoma", "nevus", "keratosis"], "triage": ["malignant", "benign"]}


def evaluation(seed: int, spaces=SPACES, tested=("lesion", "triage"), samples: int = 90) -> Evaluation:
    generator = np.random.default_rng(seed)
    tests = []
    for space in tested:
        classes = len(spaces[space])
        scores = generator.dirichlet(np.ones(classes), samples).astype(np.float32)
        tests.append(
            Predicted(space, np.arange(samples) % classes, scores.argmax(1), scores.astype(np.float16))
        )
    return Evaluation(3, spaces, [], tests)


def test_every_space_that_all_were_tested_in(tmp_path):
    one, two = evaluation(0), evaluation(1, tested=("lesion",))
    found = compare({"a": one}, {"b": two})
    assert list(found.differences) == ["lesion"] and found.samples == {"lesion": 90}
    labels = torch.arange(90) % 3
    expected = differences([probabilities(one.tests[0])], [probabilities(two.tests[0])], labels)
    assert found.differences["lesion"] == expected
    assert found.verdict.sentence.startswith(
        "a and b: no difference in balanced accuracy that 90 test samples can show."
    )
    both = compare({"a": one, "c": evaluation(2)}, {"b": evaluation(1)}, ("FedMT", "Single"))
    assert list(both.differences) == ["lesion", "triage"] and both.first == "FedMT"
    mean = np.mean([(e.tests[0].predicted == e.tests[0].labels).mean() for e in (one, evaluation(2))])
    assert both.differences["lesion"]["accuracy"].first == pytest.approx(mean, abs=1e-6)
    # A comparison gives the same result after writing and reading.
    one.write(tmp_path / "one.npz")
    assert compare({"a": read_evaluation(tmp_path / "one.npz")}, {"b": two}) == found
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["verdict"] == "no difference" and record["samples"] == {"lesion": 90}
    numbers = record["differences"]["balanced_accuracy"]["lesion"]
    assert numbers["value"] == pytest.approx(numbers["first"] - numbers["second"])
    assert numbers["low"] <= numbers["value"] <= numbers["high"]


def test_the_error_says_what_differs():
    one = evaluation(0)
    other_classes = evaluation(1, {**SPACES, "lesion": ["melanoma", "nevus", "wart"]})
    relabeled = evaluation(1)
    relabeled.tests[1].labels[:7] = 1 - relabeled.tests[1].labels[:7]
    with pytest.raises(FedmtError, match=r"a and b differ in the classes of 'lesion': 3 .*keratosis.*wart"):
        compare({"a": one}, {"b": other_classes})
    with pytest.raises(FedmtError, match=r"a and b differ in the test labels in 'triage' \(7 of 90\)"):
        compare({"a": one}, {"b": relabeled})
    with pytest.raises(FedmtError, match=r"number of test samples in 'lesion' \(90 and 60\)"):
        compare({"a": one}, {"b": evaluation(1, samples=60)})
    with pytest.raises(FedmtError, match=r"wanted label space \('lesion' and 'triage'\)"):
        compare({"a": one}, {"b": evaluation(1, dict(reversed(SPACES.items())))})
    with pytest.raises(FedmtError, match=r"b was not tested in the wanted label space 'lesion'"):
        compare({"a": one}, {"b": evaluation(1, tested=("triage",))})


def test_images_of_one_patient_are_compared_together():
    """Also if only one of the runs knows which they are, because the other is of an earlier version."""
    one, two = evaluation(0, tested=("lesion",)), evaluation(1, tested=("lesion",))
    patients = np.arange(90) // 6
    grouped = replace(one, tests=[replace(one.tests[0], groups=patients)])
    sides = [[probabilities(run.tests[0])] for run in (one, two)]
    labels = torch.arange(90) % 3
    expected = differences(*sides, labels, groups=torch.from_numpy(patients))
    assert expected != differences(*sides, labels)
    assert compare({"a": grouped}, {"b": two}).differences["lesion"] == expected
    # A reader sees whether the interval counts patients, and how few they are.
    found = compare({"a": grouped}, {"b": two})
    assert "90 test samples in 15 groups" in found.verdict.sentence, found.verdict.sentence
    assert "lesion, 90 test samples in 15 groups:" in repr(found)
    assert found.to_json()["groups"] == {"lesion": 15}
    assert "groups" not in compare({"a": one}, {"b": two}).to_json()
    assert compare({"b": two}, {"a": grouped}).differences["lesion"] == differences(
        *reversed(sides), labels, groups=torch.from_numpy(patients)
    )


def test_the_predicted_class_stays_the_most_probable_one():
    """Probabilities of 0.3333 and 0.33331 are equal in float16, but the prediction was made before."""
    tied = np.array([[0.25, 0.375, 0.375], [0.5, 0.5, 0.0]], np.float16)
    found = probabilities(Predicted("lesion", np.array([2, 0]), np.array([2, 0]), tied))
    assert found.argmax(1).tolist() == [2, 0]
    assert np.abs(found.numpy() - tied.astype(np.float32)).max() < 1e-7
