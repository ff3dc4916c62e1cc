"""Single: only the reference center counts, whatever the centers hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmt.inputs.images.augment import GEOMETRIC, Augmentation, strong, weak
from fedmt.methods import FedMT, Single, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
QUICK = Training(rounds=2, local_epochs=1, reference_epochs=2, reference_batch_size=10, warmup_epochs=3,
                 learning_rate=0.05)  # fmt: skip


def test_the_centers_have_no_influence(make_federation, play):
    """Neither their images (statistics!) nor their labels matter, nor whether there are any centers."""
    federation = make_federation(samples=20, half=True)
    rng = np.random.default_rng(0)
    changed = tuple(
        replace(c, values=255 - c.images, labels=c.labels[torch.from_numpy(rng.permutation(len(c)))])
        for c in federation.centers
    )
    runs = [
        play(replace(federation, centers=centers), Single(QUICK, VIEWS))
        for centers in (federation.centers, changed, ())
    ]
    for states, records in runs:
        assert records[-1]["centers"] == {} and states[-1].kept == {} and states[-1].server == {}
        for one, other in zip(runs[0][0], states, strict=True):
            assert all(torch.equal(one.weights[k], other.weights[k]) for k in one.weights)


def test_it_is_the_reference_centers_part_of_a_federated_method(make_federation, play):
    """FedMT with all centers absent, and with only the reference center's statistics, is Single."""
    federation = make_federation(samples=20, half=True)
    alone = replace(QUICK, batch_norm="static-reference", dropouts=0.9999)
    (*_, single), _ = play(federation, Single(QUICK, VIEWS))
    (*_, fedmt), records = play(federation, FedMT(alone, VIEWS))
    assert all("absent" in c for r in records[1:] for c in r["centers"].values())
    assert all(torch.equal(single.weights[k], fedmt.weights[k]) for k in single.weights)


def test_the_reference_centers_labels_are_what_it_learns(make_federation, play):
    federation = make_federation(per_class=2, samples=20, half=True)
    labels = (federation.reference.labels + 1) % 10
    wrong = replace(federation, reference=replace(federation.reference, labels=labels))
    training = replace(QUICK, warmup_epochs=30)
    _, right = play(federation, Single(training, VIEWS), rounds=0)
    _, shifted = play(wrong, Single(training, VIEWS), rounds=0)
    assert right[0]["accuracy"]["garment"] > 0.4 > 0.2 > shifted[0]["accuracy"]["garment"]


def test_the_reference_prior_is_what_training_shifts_the_logits_by(make_federation):
    """One more sample of each class is counted, so that one without samples has a finite logarithm. This must
    be the same in both, or predictions for the reference center's frequencies are not what it fitted."""
    federation = make_federation(per_class=2, samples=20, half=True)
    labels = federation.reference.labels.clamp_min(4)  # none of the first four classes
    uneven = replace(federation, reference=replace(federation.reference, labels=labels))
    prior = uneven.reference_prior
    assert prior.tolist() == pytest.approx([1 / 30] * 4 + [11 / 30] + [3 / 30] * 5)
    work = Single(QUICK, VIEWS).reference_work(uneven.reference, 1, np.random.default_rng(0))
    assert torch.equal(work.tables["log_prior"], prior.log())


def test_strong_and_mixed_views_of_plain_labels(make_federation):
    """CE of the strong views plus lam CE + (1 - lam) CE of the mixed ones, in float64, on the same views."""
    reference = make_federation(per_class=3).reference
    method = Single(replace(QUICK, supervised_views="strong+mixed"), VIEWS)
    work = method.reference_work(reference, 1, np.random.default_rng(0))
    weights = torch.randn(196, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 14
    views = work.views(reference.images[work.steps["index"]], work.steps)[2]
    step = {k: v[2] for k, v in work.steps.items()}
    found = work.loss(views.double().flatten(1) @ weights, step, work.tables)["loss"]

    own, partner = step["index"]
    base = weak(reference.images[step["index"].flatten()], step["weak"].flatten(0, 1), VIEWS)
    share = step["share"]
    seen = [strong(base[:10], step["strong"], VIEWS), share * base[:10] + (1 - share) * base[10:]]
    log_f = [(x.double().flatten(1) @ weights).log_softmax(1) for x in seen]
    rows = torch.arange(10)
    plain = -log_f[0][rows, reference.labels[own]]
    first, second = (-log_f[1][rows, reference.labels[i]] for i in (own, partner))
    expected = (plain + share * first + (1 - share) * second).mean()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
