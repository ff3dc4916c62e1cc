"""Run folders as a run would leave them, generated quickly, and reports of them in a real browser."""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from fedmt import Correspondence, LabelSpace
from fedmt.config import dump_config, parse_config
from fedmt.data.member import Member
from fedmt.metrics import METRICS, intervals
from fedmt.metrics.measuring import Answers, with_intervals
from fedmt.reports.report import report
from fedmt.runs.evaluation import Evaluation, Place, Predicted, measured_again
from fedmt.runs.folder import RunFolder

MakeRun = Callable[..., Path]


def config_text(method: str, rounds: int, seed: int = 0) -> str:
    raw = {
        "seed": seed,
        "method": {"name": method},
        "training": {"rounds": rounds},
        "model": {"backbone": "small_cnn"},
        "benchmark": {
            "data": {"source": "fashion_mnist"},
            "wanted": "garment",
            "spaces": {"department": 2},
            "per_class": 2,
            "samples": 20,
        },
    }
    return dump_config(parse_config(raw))


def record(
    rng: np.random.Generator, r: int, rounds: int, centers: int, done_rounds: int, measured: dict[str, Any]
) -> dict[str, object]:
    done = r / max(rounds, 1)
    # The last round's metrics are those of the predictions. In earlier rounds, they approach them.
    early = 1 - r / max(done_rounds, 1)
    metrics = {
        name: {space: result["value"] * (1 - 0.4 * early) for space, result in spaces.items()}
        for name, spaces in measured["metrics"].items()
        if METRICS[name].every_round or r == done_rounds
    }
    each: dict[str, object] = {}
    for c in range(centers) if r else ():
        facts = {
            "confident_share": 0.4 + 0.2 * done,
            "pseudo_label_accuracy": 0.8 + 0.1 * done,
            "correspondence_error": 1 - 0.7 * done + 0.1 * rng.random(),
            "update_norm": 2 - done + 0.1 * c,
            "update_cosine": 0.6 + 0.05 * c - 0.1 * done,
        }
        each[f"center-{c}"] = {**facts, "losses": {"loss": 1.5 - done, "projection": 1 - done / 2}}
        if (r + c) % 7 == 3:
            each[f"center-{c}"] = {"absent": "dropped out"}
        if (r + c) % 11 == 5:
            each[f"center-{c}"] = {"abstained": "no sample is confident"}
    means = {
        "confident_share": 0.4 + 0.2 * done,
        "pseudo_label_accuracy": 0.8,
        "correspondence_error": 1 - done,
    }
    return {
        "round": r,
        **metrics,
        "mean_matrix": {name: {"coarse": spaces["coarse"]} for name, spaces in metrics.items()},
        "reference_loss": 1 - 0.5 * done,
        **(means if r else {}),
        **({"losses": {"loss": 1.5 - done, "projection": 1 - done / 2}} if r else {}),
        "centers": each,
        "seconds": {"total": 1.5},
    }


def site_results(test: Predicted, name: str, first: int, step: int) -> dict[str, Any]:
    """The results of a site as a run measures them. Every `step`-th sample comes from the site."""
    labels = torch.from_numpy(test.labels[first::step])
    scores = torch.from_numpy(test.probabilities[first::step].astype(np.float32))
    metrics = with_intervals(Answers([scores], labels))
    return {"kind": "site", "name": name, "space": test.space, "samples": len(labels), "metrics": metrics}


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """`classes` in the wanted space 'fine', `groups` in the centers' 'coarse'. Unfinished: no summary.

    skill: how much the true class stands out. same_tests: the test labels do not depend on the seed.
    estimated: with M-hat; otherwise M is given. training_seed: the seed in the config. sites: the sites of
    the samples in the wanted space, in turn.
    """

    def make(
        path: Path,
        classes: int = 6,
        groups: int = 3,
        rounds: int = 8,
        centers: int = 4,
        samples: int = 300,
        method: str = "fedmt",
        finished: bool = True,
        evaluated: bool = True,
        names: tuple[str, ...] | None = None,
        seed: int = 0,
        skill: float = 1.5,
        same_tests: bool = False,
        estimated: bool = True,
        training_seed: int = 0,
        temperature: float | None = None,
        sites: tuple[str, ...] = (),
    ) -> Path:
        rng = np.random.default_rng(seed)
        path.mkdir(parents=True)
        folder = RunFolder(path)
        folder.config_file.write_text(config_text(method, rounds, training_seed))
        done = rounds if finished else rounds // 2
        fine = names or tuple(f"kind {k}" for k in range(classes))
        truth = np.eye(groups, dtype=np.float32)[:, np.arange(classes) % groups]
        wanted = LabelSpace("fine", fine)
        coarse = LabelSpace("coarse", [f"group {g}" for g in range(groups)])
        members, estimates = [Member("reference", wanted, None, 60)], {}
        for c in range(centers):
            noisy = truth + 0.3 * rng.random(truth.shape, dtype=np.float32)
            known = Correspondence(truth, wanted, coarse, "test")
            members.append(Member(f"center-{c}", coarse, known, 100 + c))
            if estimated:
                estimates[f"center-{c}"] = noisy / noisy.sum(0)
        tests = []
        drawn = np.random.default_rng(99) if same_tests else rng
        for space, size in (("fine", classes), ("coarse", groups)):
            labels = drawn.integers(size, size=samples)
            scores = rng.random((samples, size)) ** 3
            scores[np.arange(samples), labels] += skill * rng.random(samples)
            scores /= scores.sum(1, keepdims=True)
            from_where = [Place("site", n, np.arange(i, samples, len(sites))) for i, n in enumerate(sites)]
            places = from_where if space == "fine" else []
            tests.append(Predicted(space, labels, scores.argmax(1), scores.astype(np.float16), places))
        spaces = {"fine": fine, "coarse": coarse.classes}
        even, uneven = (
            [1 / len(fine)] * len(fine),
            [0.5 + 0.5 / len(fine), *[0.5 / len(fine)] * (len(fine) - 1)],
        )
        priors = {"own": even, "reference": even, "centers": uneven}
        own = {f"center-{c}": uneven for c in range(centers)}
        evaluation = Evaluation(
            done, spaces, members, tests, estimates, "reference", priors=priors, center_priors=own
        )
        with patch.multiple(intervals, FEWEST=20, MOST=20):  # their quality does not matter here
            measured = measured_again(evaluation)
            if sites:
                measured["places"] = [
                    site_results(tests[0], name, i, len(sites)) for i, name in enumerate(sites)
                ]
        with folder.metrics_file.open("w") as file:
            for r in range(done + 1):
                file.write(json.dumps(record(rng, r, rounds, centers, done, measured)) + "\n")
        if evaluated:
            replace(evaluation, measured=measured).write(folder.evaluation_file)
        if finished:
            last = json.loads(folder.metrics_file.read_text().splitlines()[-1])
            folder.write_summary(
                {
                    "method": tomllib.loads(folder.config_file.read_text())["method"]["name"],
                    "rounds": rounds,
                    "accuracy": last["accuracy"],
                    "best_accuracy_of_any_round": last["accuracy"],
                    "seconds": 1.5 * (rounds + 1),
                    "seed": 0,
                    "device": "cpu",
                    "threads": 1,
                    **({"calibration": {"temperature": temperature}} if temperature else {}),
                    "versions": {"fedmt": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
                }
            )
        return path

    return make


SITES = ("Bonn", "Kiel")
HOSTILE = "</script><img src=x onerror=boom()>"


class Opened:
    """A page, with its console complaints and its requests."""

    def __init__(self, browser, address: str, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        # The last one is caused by the tests themselves, which read pixels.
        self.page.on(
            "console",
            lambda m: m.text.startswith("Canvas2D: Multiple readback") or self.complaints.append(m.text),
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(address)


@pytest.fixture
def open_page(browser) -> Iterator[object]:
    opened: list[Opened] = []

    def go(address: str, **options: object) -> Opened:
        opened.append(Opened(browser, address, **options))
        return opened[-1]

    yield go
    for one in opened:
        one.context.close()
        outside = [
            u for u in one.requests if not u.startswith(("file:", "data:", "about:", "http://127.0.0.1:"))
        ]
        assert outside == [] and one.complaints == []


@pytest.fixture
def soon() -> Callable[..., Any]:
    """Playwright's `expect`, which waits. A busy machine delays what a click or a hover draws."""
    return pytest.importorskip("playwright.sync_api").expect


@pytest.fixture(scope="session")
def comparison(make_run, tmp_path_factory) -> Path:
    """Three runs, of which one is unfinished, with a class name that contains HTML."""
    home = tmp_path_factory.mktemp("comparison")
    names = (HOSTILE, "b", "c", "d", "e", "f")
    runs = [
        make_run(home / "first", names=names, seed=1),
        make_run(home / "second", rounds=12, seed=2),
        make_run(home / "third", finished=False, seed=3),
    ]
    report(runs, home / "report.html")
    return home / "report.html"


@pytest.fixture(scope="session")
def paired(make_run, tmp_path_factory) -> Path:
    """A run with a given M, one with an estimated M, and a baseline, all tested on the same samples."""
    home, same = tmp_path_factory.mktemp("paired"), {"same_tests": True, "sites": SITES}
    runs = [
        make_run(home / "single", method="single", seed=1, skill=0.9, estimated=False, **same),
        make_run(home / "given", seed=2, skill=3.0, estimated=False, temperature=0.5, **same),
        make_run(home / "estimated", seed=3, skill=2.0, same_tests=True),
    ]
    report(runs, home / "report.html", "Paired", notice="Internal draft.")
    return home / "report.html"


@pytest.fixture
def ink_of() -> Callable[..., int]:
    return _ink_of


def _ink_of(page, selector: str) -> int:
    """The number of pixels of a canvas that differ from its first one."""
    return page.eval_on_selector(
        selector,
        """c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
        for (let i = 0; i < d.length; i += 4)
          if (d[i] !== d[0] || d[i+1] !== d[1] || d[i+2] !== d[2] || d[i+3] !== d[3]) n++;
        return n; }""",
    )


@pytest.fixture
def hostile() -> str:
    """The name of a class that contains HTML."""
    return HOSTILE
