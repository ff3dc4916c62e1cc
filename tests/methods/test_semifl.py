"""SemiFL: its loss by the equations, the samples that it sees, and that it ignores the centers' labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmt.core.errors import FedmtError
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation, strong, weak
from fedmt.methods import SemiFL, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
QUICK = Training(rounds=2, local_epochs=1, batch_size=7, reference_epochs=2, reference_batch_size=10,
                 warmup_epochs=10, learning_rate=0.05)  # fmt: skip


def guesses(center, sharpness=3.0):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(center), 10, generator=generator)
    logits[torch.arange(len(center)), center.truth] += sharpness
    return logits.softmax(1)


def test_the_loss_is_the_papers(make_federation):
    """L_fix + lambda_1 L_mix in float64 on the same views."""
    center = make_federation(half=True).centers[0]
    work = (
        SemiFL(QUICK, VIEWS, xi=0.6, lambda_1=0.3, prior="ignored")
        .center_round(center, guesses(center), {}, 1, np.random.default_rng(0))
        .work
    )
    weights = torch.randn(196, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 14
    views = work.views(center.images[work.steps["index"]], work.steps)
    step = {k: v[1] for k, v in work.steps.items()}
    losses = work.loss(views[1].double().flatten(1) @ weights, step, work.tables)

    own, partner = step["index"]
    plain = weak(center.images[step["index"].flatten()], step["weak"].flatten(0, 1), VIEWS)
    share = step["share"].double()
    pseudo = guesses(center).argmax(1)
    scores = strong(plain[:7], step["strong"], VIEWS).double().flatten(1) @ weights
    fix = F.cross_entropy(scores, pseudo[own])
    mixed = share * plain[:7].double() + (1 - share) * plain[7:].double()
    scores = mixed.flatten(1) @ weights
    mix = share * F.cross_entropy(scores, pseudo[own]) + (1 - share) * F.cross_entropy(
        scores, pseudo[partner]
    )
    for name, expected in (("fix", fix), ("mix", mix), ("loss", fix + 0.3 * mix)):
        assert float(losses[name]) == pytest.approx(float(expected), rel=1e-5), name


def test_the_center_s_own_frequencies_are_estimated_without_its_labels(make_federation):
    """By default, pi maximizes the likelihood of the images alone. Guesses and training are for this pi."""
    center = make_federation(half=True).centers[0]
    truth = torch.where(torch.arange(len(center)) % 2 == 0, 0, center.truth)
    scores = guesses(replace(center, truth=truth)).double()
    method = SemiFL(replace(QUICK, batch_size=10), VIEWS, xi=0.6)
    plan = method.center_round(center, scores, {}, 1, np.random.default_rng(0))
    base = torch.full((10,), 0.1, dtype=torch.float64)
    pi = base.clone()
    for _ in range(50):
        q = scores * pi / (scores @ pi)[:, None]
        doubt = 1 - q.max(1).values.mean()
        pi = (1 - doubt) * q.mean(0) + doubt * base
    torch.testing.assert_close(plan.keep["prior"], pi)
    assert pi[0] > 0.4
    q = scores * pi
    assert torch.equal(plan.pseudo_labels, q.argmax(1))
    assert torch.equal(plan.confident, (q / q.sum(1, keepdim=True)).max(1).values > 0.6)
    assert not torch.equal(plan.pseudo_labels, scores.argmax(1))
    logits = torch.randn(20, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    step = {k: v[0] for k, v in plan.work.steps.items()}
    fix = plan.work.loss(logits, step, plan.work.tables)["fix"]
    expected = F.cross_entropy(logits[:10] + pi.log(), plan.pseudo_labels[step["index"][0]])
    assert float(fix) == pytest.approx(float(expected), rel=1e-5)
    relabeled = replace(center, labels=center.labels.flip(0))
    again = method.center_round(relabeled, scores, {}, 1, np.random.default_rng(0))
    assert torch.equal(again.keep["prior"], plan.keep["prior"])


def test_only_confident_samples_are_visited_and_partners_are_of_all(make_federation):
    center = make_federation(half=True).centers[0]
    method = SemiFL(QUICK, VIEWS, xi=0.6, prior="ignored")
    plan = method.center_round(center, guesses(center), {}, 1, np.random.default_rng(0))
    confident = (guesses(center).max(1).values > 0.6).nonzero().flatten().tolist()
    assert 5 < len(confident) < len(center) - 5
    assert set(plan.work.steps["index"][:, 0].flatten().tolist()) == set(confident)
    assert not set(plan.work.steps["index"][:, 1].flatten().tolist()) <= set(confident)
    assert torch.equal(plan.pseudo_labels, guesses(center).argmax(1))
    assert not plan.keep and plan.work.space is None


def test_the_centers_labels_have_no_influence(make_federation, play):
    """With shuffled labels, or none at all, the weights are bit-identical."""
    federation = make_federation(samples=30, half=True)
    rng = np.random.default_rng(0)
    shuffled = tuple(
        replace(c, labels=c.labels[torch.from_numpy(rng.permutation(len(c)))]) for c in federation.centers
    )
    bare = tuple(replace(c, space=None, labels=None, correspondence=None) for c in federation.centers)
    method = SemiFL(QUICK, VIEWS, xi=0.3)
    runs = [play(replace(federation, centers=c), method) for c in (federation.centers, shuffled, bare)]
    records = [r[-1] for _, r in runs]
    assert all("losses" in c for c in records[0]["centers"].values())
    for states, _ in runs[1:]:
        for one, other in zip(runs[0][0], states, strict=True):
            assert all(torch.equal(one.weights[k], other.weights[k]) for k in one.weights)
    # It still predicts in their spaces, through the known correspondences.
    assert {"department", "layer"} <= set(records[0]["accuracy"])
    assert records[0]["accuracy"]["garment"] == records[2]["accuracy"]["garment"]


def test_pseudo_labels_are_of_the_received_model(make_federation, make_engine):
    federation = make_federation(samples=30, half=True)
    engine = make_engine(federation, SemiFL(QUICK, VIEWS, xi=0.3, prior="ignored"))
    state, _ = engine.start()
    _, record = engine.round(state)
    engine.model.load_state_dict(state.weights)
    engine.model.eval()
    for center in federation.centers:
        with torch.no_grad():
            top, label = engine.model(center.images.float() / 255).softmax(1).max(1)
        facts = record["centers"][center.name]
        assert facts["confident_share"] == pytest.approx((top > 0.3).float().mean().item())
        right = (label == center.truth)[top > 0.3].float().mean().item()
        assert facts["pseudo_label_accuracy"] == pytest.approx(right)


def test_a_center_without_a_confident_sample_abstains(make_federation, play):
    (before, after), records = play(
        make_federation(samples=20, half=True),
        SemiFL(replace(QUICK, reference_epochs=0), VIEWS, xi=1 - 1e-12),
        rounds=1,
    )
    assert all("xi" in c["abstained"] for c in records[1]["centers"].values())
    assert all(torch.equal(before.weights[k], after.weights[k]) for k in before.weights)


@pytest.mark.parametrize(
    ("options", "key"), [({"xi": 1.0}, "xi"), ({"a": 0.0}, "a"), ({"lambda_1": -1.0}, "lambda_1")]
)
def test_bad_options_are_named(options, key):
    with pytest.raises(FedmtError, match=rf"method\.{key}"):
        SemiFL(**options)
