"""The results of each test set and site, compared with those of samples selected by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmt.core.labels import LabelSpace
from fedmt.data.center import Center
from fedmt.engines import testing
from fedmt.inputs import Vectors
from fedmt.metrics import METRICS
from fedmt.runs.comparison import probabilities
from fedmt.runs.evaluation import Evaluation, Predicted, by_place, measured, read_evaluation

KIND = LabelSpace("kind", ["a", "b", "c"])


def answered(name: str, seed: int, sites: tuple[str, ...] | None, answers: int = 1) -> testing.Tested:
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(3, size=40))
    each = [torch.from_numpy(rng.dirichlet(np.ones(3), size=40)) for _ in range(answers)]
    test = Center(name, torch.zeros(40, 2), KIND, labels, input=Vectors, sites=sites)
    return testing.Tested(test, "kind", labels, each)


def accuracy(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    right = [(p.argmax(1) == y).double() for p, y in parts]
    return torch.cat(right).mean().item()


@pytest.mark.parametrize("answers", [1, 3])
def test_each_test_set_and_each_site_is_measured_on_its_own_samples(answers: int) -> None:
    """A site that is in both test sets is one site. With several answers, the result is their mean."""
    sites = tuple("Bonn" if i % 3 else "Kiel" for i in range(40))
    first, second = answered("x", 0, sites, answers), answered("y", 1, ("Bonn",) * 40, answers)
    [part] = testing.pooled([first, second])
    found = {(p["kind"], p["name"]): p for p in by_place(part)}
    bonn = torch.tensor([s == "Bonn" for s in sites])
    everything = torch.ones(40, dtype=torch.bool)
    for key, chosen in {
        ("test set", "x"): [(first, everything)],
        ("test set", "y"): [(second, everything)],
        ("site", "Kiel"): [(first, ~bonn)],
        ("site", "Bonn"): [(first, bonn), (second, everything)],
    }.items():
        place = found.pop(key)
        means = [accuracy([(t.each[a][at], t.labels[at]) for t, at in chosen]) for a in range(answers)]
        assert place["space"] == "kind" and place["samples"] == sum(int(at.sum()) for _, at in chosen)
        one = place["metrics"]["accuracy"]
        assert one["value"] == pytest.approx(sum(means) / answers, abs=1e-6)
        assert one["low"] < one["value"] < one["high"]
    assert not found


def test_the_images_of_a_patient_are_kept_together(tmp_path: Path) -> None:
    """In the intervals, at each site, and in the file of a run, which does not have their names."""
    one = answered("x", 0, ("Bonn",) * 20 + ("Kiel",) * 20)
    numbers = torch.arange(40) // 4 * 7_919
    grouped = replace(one, test=replace(one.test, groups=numbers))
    [apart], [part] = testing.pooled([one]), testing.pooled([grouped])
    assert apart.groups is None and part.groups is not None
    assert part.groups.tolist() == (torch.arange(40) // 4).tolist()
    for name in ("accuracy", "auroc"):
        expected = METRICS[name].ends(one.each[0], one.labels, part.groups).tolist()
        found = measured([grouped])["metrics"][name]["kind"]
        assert [found["low"], found["high"]] == expected
    bonn = by_place(part)[0]["metrics"]["accuracy"]
    ends = METRICS["accuracy"].ends(one.each[0][:20], one.labels[:20], torch.arange(20) // 4).tolist()
    assert [bonn["low"], bonn["high"]] == ends
    p = one.each[0].float()
    tested = Predicted("kind", one.labels.numpy(), p.argmax(1).numpy(), p.numpy(), (), part.groups.numpy())
    Evaluation(1, {"kind": KIND.classes}, (), [tested]).write(tmp_path / "evaluation.npz")
    read = read_evaluation(tmp_path / "evaluation.npz")
    assert read is not None and torch.equal(read.tests[0].together, part.groups)


def test_one_test_set_without_sites_has_no_places() -> None:
    alone = [answered("x", 0, None)]
    assert by_place(testing.pooled(alone)[0]) == [] and "places" not in measured(alone)


def test_the_scores_of_a_confident_model_stay_apart_on_disk(tmp_path: Path) -> None:
    """Its probabilities crowd near 0 and 1, where float16 would make most of them equal."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 2
    logits = torch.randn(600, 2, generator=generator)
    logits[torch.arange(600), labels] += 1.5
    sure = (12 * logits).softmax(1)
    tested = Predicted("kind", labels.numpy(), sure.argmax(1).numpy(), sure.numpy())
    Evaluation(1, {"kind": ("a", "b")}, (), [tested]).write(tmp_path / "evaluation.npz")
    read = read_evaluation(tmp_path / "evaluation.npz")
    assert read is not None
    for name in ("auroc", "average_precision"):
        function = METRICS[name].function
        assert function is not None
        assert function(probabilities(read.tests[0]), labels).item() == function(sure, labels).item()
