"""How much does FedMT lose where its assumptions do not hold, and when is it no longer needed?

    python benchmarks/assumptions.py --jobs 2 --json docs/results/data/assumptions.json

The federation is the quickstart's, from experiments/base/fashion_mnist.toml, with seeds 0 to 2. Each case
changes one thing. The unchanged runs are those of `fedmt reproduce methods`.

- Wrong column: M assigns a wanted class to the wrong class of the centers. Unknown column: M spreads a wanted
  class evenly over all classes of the centers. In one case, a fifth of each wrong column is spread in this
  way. The seed draws the columns, which are the same at all centers of a label space. The columns of "1
  wrong" and "2 wrong" are among those of "4 wrong".
- Uneven classes: the non-IID split with gamma 0.9, in which two garments make up most of a center. Long tail:
  400 images, with 50 times as many of the most frequent garment as of the rarest. Each center has its own
  order of garments.
- Estimated prior: `method.prior = "estimated"`, the default. The other cases state that the prior is uniform.
- Unrelated labels: each center's labels are shuffled. Negative images: the images are inverted at
  every center, but not in the test.
- n reference images per class: the warm-up takes 900 / n epochs, so the number of steps is always the same.
  Each of Single's 20 rounds has 120 / n epochs, but at least 3.

The result is the test accuracy of the last round in the wanted space. The figures, the machine and the
versions are in docs/results/assumptions.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import statistics
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedmt
from fedmt import Center, Correspondence, Federation
from fedmt.backbones import Classifier
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.data.sources.fashion_mnist import (
    GARMENT,
    GARMENT_TO_DEPARTMENT,
    GARMENT_TO_LAYER,
    read_fashion_mnist,
)
from fedmt.data.splits import iid_split
from fedmt.data.uneven import long_tailed_split, non_iid_split
from fedmt.engines.device import pick_device
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images import pixel_statistics
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, Method, Single, Training

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
MATRICES = [GARMENT_TO_DEPARTMENT] * 4 + [GARMENT_TO_LAYER] * 4
SAMPLES = 750
TAILED = 400
"""Images at each center with a long tail. With more, the frequent classes would run out."""

Change = Callable[[Center, int], Center]
"""Maps a center and the seed to the center with one thing changed."""


def wrong_columns(matrix: Correspondence, count: int, seed: int) -> list[tuple[int, int]]:
    """Draws `count` pairs (wanted class, a class other than its own). Each class keeps a wanted class."""
    rng = np.random.default_rng([seed, len(matrix.coarse)])
    own = matrix.matrix.argmax(0).tolist()
    pairs: list[tuple[int, int]] = []
    for k in rng.permutation(len(own)).tolist():
        if own.count(own[k]) > 1:
            others = [j for j in range(len(matrix.coarse)) if j != own[k]]
            own[k] = int(rng.choice(others))
            pairs.append((k, own[k]))
    return pairs[:count]


def with_wrong(count: int, spread: float = 0.0) -> Change:
    """Makes `count` columns of the given M wrong, and spreads a share of each evenly over all classes."""

    def changed(center: Center, seed: int) -> Center:
        known = center.correspondence
        assert known is not None
        m = known.matrix.clone()
        for k, j in wrong_columns(known, count, seed):
            m[:, k] = spread / len(m)
            m[j, k] += 1 - spread
        return replace(center, correspondence=Correspondence(m, known.fine, known.coarse))

    return changed


def with_unrelated_labels(center: Center, seed: int) -> Center:
    """Shuffles the labels: they are as frequent as before, but say nothing about the image."""
    assert center.labels is not None
    order = np.random.default_rng([seed, *center.name.encode()]).permutation(len(center))
    return replace(center, labels=center.labels[torch.from_numpy(order)])


def with_negatives(center: Center, seed: int) -> Center:
    return replace(center, values=255 - center.images)


def unchanged(center: Center, seed: int) -> Center:
    return center


@dataclass(frozen=True)
class Case:
    """method: FedMT's option `correspondence`, or 'single'. gamma: parameter of the non-IID split. imbalance:
    parameter of the long-tailed split."""

    name: str
    method: str
    change: Change = unchanged
    prior: str = "uniform"
    gamma: float | None = None
    imbalance: float | None = None
    per_class: int = 3
    training: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    found = [
        Case("FedMT (T), 1 column wrong", "given", with_wrong(1)),
        *(Case(f"FedMT (T), {n} columns wrong", "given", with_wrong(n)) for n in (2, 4)),
        Case("FedMT (T), 2 columns wrong, a fifth of them spread", "given", with_wrong(2, spread=0.2)),
        Case("FedMT (T), 4 columns unknown", "given", with_wrong(4, spread=1)),
        Case("FedMT (T), uneven classes", "given", gamma=0.9),
        Case("FedMT (T), uneven classes, estimated prior", "given", prior="estimated", gamma=0.9),
        *(
            Case(f"FedMT ({name}), long tail{told}", known, prior=prior, imbalance=50)
            for name, known in (("T", "given"), ("E", "estimated"))
            for told, prior in (("", "uniform"), (", estimated prior", "estimated"))
        ),
        Case("FedMT (E), uneven classes, estimated prior", "estimated", prior="estimated", gamma=0.9),
        Case("FedMT (T), 1 column wrong, estimated prior", "given", with_wrong(1), prior="estimated"),
        Case("FedMT (E), unrelated labels", "estimated", with_unrelated_labels),
        Case("FedMT (T), negative images at the centers", "given", with_negatives),
    ]
    for n in (30, 100):
        alone, warm = {"reference_epochs": max(3, 120 // n)}, {"warmup_epochs": 900 // n}
        found.append(Case(f"Single, {n} images per class", "single", per_class=n, training=alone))
        found.append(Case(f"FedMT (T), {n} images per class", "given", per_class=n, training=warm))
    return found


def federation(case: Case, seed: int) -> Federation:
    train, test = read_fashion_mnist("train"), read_fashion_mnist("test")
    truth, count = train.labels["garment"], len(MATRICES)
    if case.imbalance is not None:
        split = long_tailed_split(truth, len(GARMENT), case.per_class, count, TAILED, case.imbalance, seed)
    elif case.gamma is None:
        split = iid_split(truth, len(GARMENT), case.per_class, count, SAMPLES, seed)
    else:
        split = non_iid_split(truth, len(GARMENT), case.per_class, count, SAMPLES, case.gamma, seed)
    reference = Center("reference", train.images[split.reference], GARMENT, truth[split.reference])
    centers = tuple(
        Center(f"center-{i}", train.images[part], m.coarse, m.map_labels(truth[part]), m, truth[part])
        for i, (part, m) in enumerate(zip(split.centers, MATRICES, strict=True), 1)
    )
    tests = (Center("test", test.images, GARMENT, test.labels["garment"]),)
    return Federation(GARMENT, reference, tuple(case.change(c, seed) for c in centers), tests)


def method(case: Case) -> Method:
    """The quickstart's method, with the changes of the case."""
    base = tomllib.loads((EXPERIMENTS / "base" / "fashion_mnist.toml").read_text())
    augmentation = Augmentation(
        **{**base["augmentation"], "operations": tuple(base["augmentation"]["operations"])}
    )
    if case.method == "single":
        columns = tomllib.loads((EXPERIMENTS / "methods.toml").read_text())["columns"]
        (own,) = [c["set"] for c in columns if c["label"] == "Single"]
        alone = {k.removeprefix("training."): v for k, v in own.items() if k.startswith("training.")}
        return Single(Training(**{**base["training"], **alone, **case.training}), augmentation)
    options = {**base["method"], "correspondence": case.method, "prior": case.prior}
    del options["name"]
    return FedMT(Training(**{**base["training"], **case.training}), augmentation, **options)


def measured(number: int, seed: int, device: str) -> dict[str, Any]:
    """Runs the case with this number. A number, because a case's functions cannot be sent to a process."""
    torch.set_num_threads(1)
    case = cases()[number]
    data = federation(case, seed)
    torch.manual_seed(seed)
    model = Classifier(SmallCNN(len(GARMENT), 1), *pixel_statistics(data.reference.images))
    engine = LocalEngine(data, method(case), model, seed, pick_device(device), precision="float32")
    state, record = engine.start()
    curve = [record["accuracy"]["garment"]]
    while state.round < engine.method.training.rounds:
        state, record = engine.round(state)
        curve.append(record["accuracy"]["garment"])
    keys = ("confident_share", "pseudo_label_accuracy", "correspondence_error")
    facts = {key: record[key] for key in keys if key in record}
    return {"case": case.name, "seed": seed, "accuracy": curve[-1], **facts, "by_round": curve}


def job(work: tuple[int, int, str]) -> dict[str, Any]:
    return measured(*work)


def write(path: Path, rows: list[dict[str, Any]], device: str) -> None:
    """Called after every run, so that a command that is killed keeps its finished runs."""
    order = [case.name for case in cases()]
    rows = sorted(rows, key=lambda r: (order.index(r["case"]), r["seed"]))
    picked = pick_device(device)
    where = torch.cuda.get_device_name(picked) if picked.type == "cuda" else "CPU, one thread per run"
    versions = {"fedmt": fedmt.__version__, "torch": torch.__version__, "python": platform.python_version()}
    found = {"date": f"{datetime.date.today()}", "device": where, "versions": versions, "runs": rows}
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures FedMT where its assumptions do not hold.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help="run only the cases whose name contains this text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [(i, c) for i, c in enumerate(cases()) if options.only in c.name]
    work = [(i, seed, options.device) for seed in range(options.seeds) for i, _ in chosen]
    rows = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap_unordered(job, work):
            rows.append(row)
            print(f"{row['case']}, seed {row['seed']}: {row['accuracy']:.1%}", flush=True)
            if options.json is not None:
                write(options.json, rows, options.device)
    for _, case in chosen:
        values = [100 * r["accuracy"] for r in rows if r["case"] == case.name]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        shown = ", ".join(f"{v:.1f}" for v in values)
        print(f"{case.name:45} {statistics.mean(values):5.1f} ± {spread:.1f}   ({shown})")


if __name__ == "__main__":
    main()
