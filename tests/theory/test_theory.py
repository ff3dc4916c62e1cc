"""The bounds against hand calculations and brute force, where they hold and where they must not."""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.core.errors import FedmtError
from fedmt.theory import (
    World,
    bound_estimated,
    bound_known,
    coarse_bound,
    confidence,
    deviation,
    empirical_loss,
    example_world,
    inverse_correspondence,
    plot_simulation,
    simulate,
)
from fedmt.theory.simulation import _draw

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32)
counts = st.integers(0, 10**6)


def columns(rng: np.random.Generator, coarse: int, wanted: int) -> np.ndarray:
    """A random M with some entries that are exactly 0."""
    matrix = rng.dirichlet(np.full(coarse, 0.7), size=wanted).T
    matrix = np.where(matrix < 0.1 / coarse, 0, matrix)
    return matrix / matrix.sum(0)


# -- S from M ---------------------------------------------------------------------------------------------


@quick
@given(seeds, st.integers(1, 6), st.integers(1, 7), st.booleans())
def test_the_inverse_is_bayes_on_the_joint_table(seed: int, coarse: int, wanted: int, sparse: bool) -> None:
    rng = np.random.default_rng(seed)
    matrix, prior = columns(rng, coarse, wanted), rng.dirichlet(np.full(wanted, 0.1 if sparse else 1.0))
    if sparse:
        prior = np.where(prior < 0.05, 0, prior)
        prior = prior / prior.sum()
    found = inverse_correspondence(torch.from_numpy(matrix), torch.from_numpy(prior)).numpy()
    assert found.shape == (wanted, coarse) and (found >= 0).all()
    np.testing.assert_allclose(found.sum(0), 1, rtol=0, atol=1e-12)
    for j in range(coarse):
        joint = [float(matrix[j, k] * prior[k]) for k in range(wanted)]
        for k in range(wanted):
            expected = joint[k] / sum(joint) if sum(joint) > 0 else prior[k]
            assert found[k, j] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_papers_inverse_needs_uniform_labels_in_both_spaces() -> None:
    equal = torch.tensor([[1.0, 1, 0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5, 1, 1]]).double()  # rows sum to K / J
    torch.testing.assert_close(inverse_correspondence(equal), 2 / 6 * equal.T)
    skewed = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert (inverse_correspondence(equal, skewed) - 2 / 6 * equal.T).abs().max() > 0.2
    unequal = torch.tensor([[1.0, 1, 1, 0], [0, 0, 0, 1]])
    assert (inverse_correspondence(unequal) - 2 / 4 * unequal.T).abs().max() > 0.1


def test_a_label_that_never_occurs_leaves_the_prior() -> None:
    matrix = torch.tensor([[1.0, 0.5], [0.0, 0.5], [0.0, 0.0]])
    assert inverse_correspondence(matrix, torch.tensor([1.0, 0.0])).T.tolist() == [[1, 0], [1, 0], [1, 0]]
    assert inverse_correspondence(matrix)[:, 2].tolist() == [0.5, 0.5]


# -- the bounds -------------------------------------------------------------------------------------------


def test_the_bounds_by_hand() -> None:
    # K = 4: 100 log 100 = 460.5170, 400 log 400 = 2396.5858, their sum 2857.1028.
    assert deviation(100, 400, 4) == pytest.approx(math.sqrt(2857.1028) / 500, rel=1e-6)
    assert deviation(100, 400, 4) == pytest.approx(0.106903, abs=1e-6)
    assert deviation(100, 400, 4, form="relaxed") == pytest.approx(0.151185, abs=1e-6)
    # T1: 0.2 sqrt(4 log 100 / 400) = 0.0429194; T2: 0.8 sqrt(4 log 400 / 1600) = 0.0979098
    assert deviation(100, 400, 4, form="proof") == pytest.approx(0.140829, abs=1e-6)
    assert deviation(100, 400, 4, diameter=math.sqrt(2)) == pytest.approx(0.106903 / math.sqrt(2), abs=1e-6)
    assert bound_known(0.25, 100, 400, 4) == pytest.approx(0.356903, abs=1e-6)
    # sqrt(log 400 / 400) = 0.122387
    assert bound_estimated(0.25, 100, 400, 4, 3.0) == pytest.approx(0.356903 + 0.367161, abs=2e-6)
    assert coarse_bound(0.3, classes=4) == pytest.approx(0.6)
    assert confidence(100, 400, proof="printed") == pytest.approx(0.9)
    assert confidence(100, 400, proof="union") == pytest.approx(1 - 0.2 - 0.1)
    assert confidence(100, 400, proof="union", estimated=True) == pytest.approx(1 - 0.2 - 0.1 - 0.1)
    assert confidence(100, 400) == pytest.approx(1 - math.exp(-2.8571028), rel=1e-6)
    assert confidence(100, 400, estimated=True) == pytest.approx(1 - math.exp(-2.8571028) - 0.1, rel=1e-6)


def test_one_sample_and_none() -> None:
    assert deviation(1, 1, 5) == 0 == confidence(1, 1)  # log 1 = 0, with no confidence in it
    assert deviation(0, 100, 4) == deviation(100, 0, 4) == pytest.approx(math.sqrt(math.log(100) / 100))
    assert bound_estimated(0.5, 100, 0, 4, 9.0) == bound_known(0.5, 100, 0, 4)
    assert confidence(100, 0, estimated=True) == pytest.approx(0.9)
    assert confidence(2, 2, proof="union") == 0


@quick
@given(st.integers(2, 10**6), st.integers(2, 10**6), st.integers(2, 100))
def test_the_printed_sum_of_two_terms_is_below_their_sum(n: int, m: int, classes: int) -> None:
    t1, t2 = (math.sqrt(classes * math.log(i) / (4 * i)) for i in (n, m))
    total = n / (m + n) * t1 + m / (m + n) * t2
    assert deviation(n, m, classes, form="proof") == pytest.approx(total, rel=1e-9)
    assert deviation(n, m, classes) < total  # so the paper's proof does not give the printed term
    assert total <= deviation(n, m, classes, form="relaxed") * (1 + 1e-12)


@quick
@given(counts, counts)
def test_the_pooled_confidence_is_the_best_of_the_three(n: int, m: int) -> None:
    if n + m == 0:
        return
    pooled = confidence(n, m)
    assert 1 - pooled <= 1.15 / math.sqrt(max(n, m)) + 1e-12
    assert pooled >= max(confidence(n, m, proof="printed"), confidence(n, m, proof="union")) - 1e-12


@pytest.mark.parametrize(("n", "m"), [(1, 3), (2, 9), (5, 5), (10, 30), (60, 20), (0, 50), (3, 200)])
def test_the_exact_probability_of_failure_is_within_the_pooled_one(n: int, m: int) -> None:
    """||g - f|| is 0 or B, so the empirical loss is binomial, and the probability of failure is a sum."""
    total, width, worst = n + m, deviation(n, m, 2, diameter=1.0), 0.0
    for q in np.linspace(0.01, 0.99, 99):
        failed = 0.0
        for hits in range(total + 1):
            if q > hits / total + width:
                failed += math.comb(total, hits) * q**hits * (1 - q) ** (total - hits)
        assert failed <= 1 - confidence(n, m) + 1e-12
        worst = max(worst, failed)
    assert worst > 0.01  # so there is something to bound


@quick
@given(st.integers(3, 10**4), st.integers(3, 10**5), st.integers(1, 10**5), st.integers(2, 100))
def test_the_bounds_shrink_with_more_labels_of_the_other_space(
    n: int, m: int, more: int, classes: int
) -> None:
    for form in ("printed", "relaxed"):
        assert deviation(n, m + more, classes, form=form) < deviation(n, m, classes, form=form)
    assert bound_estimated(0.1, n, m + more, classes, 1.0) < bound_estimated(0.1, n, m, classes, 1.0)


@quick
@given(seeds, st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 5))
def test_the_empirical_loss_is_a_loop(seed: int, n: int, m: int, coarse: int, wanted: int) -> None:
    rng = np.random.default_rng(seed)
    g_s, f_s, g_c = (rng.dirichlet(np.ones(wanted), size=i) for i in (n, n, m))
    coarse_c, inverse = rng.dirichlet(np.ones(coarse), size=m), rng.dirichlet(np.ones(wanted), size=coarse).T
    arguments = [torch.from_numpy(a) for a in (g_s, f_s, g_c, coarse_c, inverse)]
    if n + m == 0:
        with pytest.raises(FedmtError, match="n, m"):
            empirical_loss(*arguments)
        return
    total = 0.0
    for i in range(n):
        total += math.sqrt(sum((g_s[i, k] - f_s[i, k]) ** 2 for k in range(wanted)))
    for i in range(m):
        image = [sum(inverse[k, j] * coarse_c[i, j] for j in range(coarse)) for k in range(wanted)]
        total += math.sqrt(sum((g_c[i, k] - image[k]) ** 2 for k in range(wanted)))
    assert empirical_loss(*arguments) == pytest.approx(total / (n + m), rel=1e-9, abs=1e-12)


@quick
@given(seeds, st.integers(1, 6), st.integers(1, 8))
def test_the_coarse_bounds_hold_for_any_matrix(seed: int, coarse: int, wanted: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = columns(rng, coarse, wanted)
    g, f = rng.dirichlet(np.full(wanted, 0.3), size=(2, 20))
    features = rng.dirichlet(np.ones(20))
    fine_error = float(features @ np.sqrt(((g - f) ** 2).sum(1)))
    coarse_error = float(features @ np.sqrt((((g - f) @ matrix.T) ** 2).sum(1)))
    spectral = coarse_bound(fine_error, matrix=torch.from_numpy(matrix))
    assert coarse_error <= spectral + 1e-12
    assert spectral == pytest.approx(fine_error * np.linalg.svd(matrix)[1].max(), rel=1e-9)
    rows = fine_error * math.sqrt(matrix.sum(1).max())
    assert spectral <= rows * (1 + 1e-9) and rows <= coarse_bound(fine_error, classes=wanted) * (1 + 1e-9)


def test_the_spectral_bound_is_reached() -> None:
    """Ten classes in two halves, g in one and f in the other: sqrt(5), where sqrt(10) is printed."""
    matrix = torch.block_diag(torch.ones(1, 5), torch.ones(1, 5)).double()
    g = torch.cat([torch.full((5,), 0.2), torch.zeros(5)]).double()
    apart = g - g.flip(0)
    assert (matrix @ apart).norm() == pytest.approx(coarse_bound(float(apart.norm()), matrix=matrix))
    assert coarse_bound(1.0, matrix=matrix) == pytest.approx(math.sqrt(5))


# -- the simulation ---------------------------------------------------------------------------------------


def informative() -> World:
    """Four classes in two labels, with features that separate the classes, so f = S f~ cannot hold."""
    return World(
        torch.full((4,), 0.25), torch.eye(4) * 0.6 + 0.1, torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    )


def test_in_the_example_world_both_independences_hold() -> None:
    world = example_world()
    p, f, matrix = world.features.numpy(), world.fine.numpy(), world.matrix.numpy()
    joint = np.einsum("x,xk,jk->xkj", p, f, matrix)
    both = joint.sum(0)
    for x, k, j in product(*map(range, joint.shape)):
        if both[k, j] > 0:
            assert joint[x, k, j] / joint[x, :, j].sum() == pytest.approx(both[k, j] / both[:, j].sum())
            assert joint[x, k, j] / joint[x, k, :].sum() == pytest.approx(both[k, j] / both[k, :].sum())
    np.testing.assert_allclose(world.inverse.numpy(), both / both.sum(0), atol=1e-12)
    np.testing.assert_allclose(world.coarse.numpy(), joint.sum(1) / p[:, None], atol=1e-12)
    assert world.gap < 1e-12
    assert informative().gap > 0.3


def test_the_bounds_hold_and_the_error_falls_with_m() -> None:
    sizes = (30, 300, 3000)
    rows = simulate(example_world(), n=30, sizes=sizes, seeds=range(12))
    assert [(row.m, row.seed) for row in rows] == list(product(sizes, range(12)))
    for row in rows:
        assert 0 < row.error <= row.bound_simplex < row.bound
        assert row.error_estimated <= row.bound_estimated
        assert row.coarse_error <= row.coarse_bound
        assert row.inverse_error <= row.constant * math.sqrt(math.log(row.m) / row.m)
    # The empirical loss alone is not a bound.
    assert 8 < sum(row.error > row.empirical for row in rows) < 28
    for name in ("error", "error_estimated", "coarse_error", "bound", "inverse_error"):
        means = [mean(getattr(row, name) for row in rows if row.m == m) for m in sizes]
        for fewer, more in pairwise(means):
            assert more < 0.7 * fewer, name
    # Ten times the samples give a third of the error, as 1 / sqrt(m).
    errors = {m: mean(row.error for row in rows if row.m == m) for m in sizes}
    assert errors[300] / errors[3000] == pytest.approx(math.sqrt(10), rel=0.4)


@pytest.mark.parametrize(("n", "m"), [(4, 3), (30, 200)])
def test_a_row_is_a_loop_over_its_draws(n: int, m: int) -> None:
    world = example_world()
    row = simulate(world, n, [m], [5], constant=2.0)[0]
    generator = torch.Generator().manual_seed(5)
    draws = [_draw(world, count, generator) for count in (n, m, n, m)]
    reference, center, fresh_s, fresh_c = ([d.tolist() for d in draw] for draw in draws)
    p, f, matrix = world.features.numpy(), world.fine.numpy(), world.matrix.numpy()
    prior, coarse = p @ f, f @ matrix.T
    exact = (matrix * prior).T / (matrix @ prior)
    hat = np.zeros((6, 5))
    for y, label in zip(center[1], center[2], strict=True):
        hat[y, label] += 1
    hat = np.stack([c / c.sum() if c.sum() else np.full(6, 1 / 6) for c in hat.T]).T
    for inverse, error, empirical in (
        (exact, row.error, row.empirical),
        (hat, row.error_estimated, row.empirical_estimated),
    ):
        votes = np.zeros((6, 6))
        for x, y in zip(reference[0], reference[1], strict=True):
            votes[x, y] += 1
        for x, label in zip(center[0], center[2], strict=True):
            votes[x] += inverse[:, label]
        g = np.stack([v / v.sum() if v.sum() else np.full(6, 1 / 6) for v in votes])
        assert error == pytest.approx(sum(p[x] * np.linalg.norm(g[x] - f[x]) for x in range(6)))
        loss = sum(np.linalg.norm(g[x] - f[x]) for x in fresh_s[0])
        loss += sum(np.linalg.norm(g[x] - inverse @ coarse[x]) for x in fresh_c[0])
        assert empirical == pytest.approx(loss / (n + m))
        if inverse is exact:
            coarse_error = sum(p[x] * np.linalg.norm(matrix @ g[x] - coarse[x]) for x in range(6))
            assert row.coarse_error == pytest.approx(coarse_error)
    assert row.inverse_error == pytest.approx(np.linalg.svd(hat - exact)[1].max())
    assert row.bound == pytest.approx(bound_known(row.empirical, n, m, 6))
    assert row.bound_simplex == pytest.approx(bound_known(row.empirical, n, m, 6, diameter=2**0.5))
    assert row.bound_estimated == pytest.approx(bound_estimated(row.empirical_estimated, n, m, 6, 2.0))
    assert row.coarse_bound == pytest.approx(6**0.5 * row.error)


def test_draws_follow_the_joint_distribution() -> None:
    world = example_world()
    x, y, label = _draw(world, 200_000, torch.Generator().manual_seed(0))
    found = torch.bincount((x * 6 + y) * 5 + label, minlength=180).view(6, 6, 5) / 200_000
    expected = torch.einsum("x,xk,jk->xkj", world.features, world.fine, world.matrix)
    assert (found - expected).abs().max() < 0.003  # four standard deviations of the most probable cell


def test_the_same_seed_draws_the_same() -> None:
    world = example_world()
    assert simulate(world, 20, [40], [3]) == simulate(world, 20, [40], [3])
    assert simulate(world, 20, [40], [3])[0].error != simulate(world, 20, [40], [4])[0].error


def test_either_set_may_be_empty() -> None:
    alone, other = simulate(example_world(), 500, [0], [0])[0], simulate(example_world(), 0, [500], [0])[0]
    assert alone.error == alone.error_estimated < alone.bound
    assert other.error < other.bound


def test_without_the_second_independence_the_theorem_is_false() -> None:
    """If features separate the classes of one label, more samples of that label are misleading."""
    rows = simulate(informative(), n=20, sizes=[20_000], seeds=range(3))
    assert all(row.error > 3 * row.bound for row in rows)


def test_for_a_classifier_that_memorises_the_theorem_is_false() -> None:
    """g = f on the samples and wrong elsewhere, so the empirical loss is 0, with an error on all other x."""
    rng = np.random.default_rng(0)
    features, n, m = 100_000, 500, 500
    f = torch.eye(2, dtype=torch.float64)[torch.from_numpy(rng.integers(2, size=features))]
    x = torch.from_numpy(rng.integers(features, size=n + m))
    g = f.flip(1)
    g[x] = f[x]
    world = World(torch.full((features,), 1 / features), f, torch.eye(2))
    loss = empirical_loss(g[x[:n]], f[x[:n]], g[x[n:]], world.coarse[x[n:]], world.inverse)
    assert loss == pytest.approx(0, abs=1e-9) and confidence(n, m) > 0.9
    assert world.error(g) > 10 * bound_known(loss, n, m, 2)
    y = torch.from_numpy(rng.integers(features, size=n + m))  # new samples show it
    fresh = empirical_loss(g[y[:n]], f[y[:n]], g[y[n:]], world.coarse[y[n:]], world.inverse)
    assert world.error(g) <= bound_known(fresh, n, m, 2)


def test_the_figure_shows_every_curve() -> None:
    figure = plot_simulation(simulate(example_world(), 10, [10, 100], range(2)))
    left, right = figure.axes
    assert [len(axes.lines) for axes in (left, right)] == [5, 2]
    for axes in (left, right):
        assert axes.get_xscale() == axes.get_yscale() == "log" and axes.get_xlabel() and axes.get_title()
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert len(set(labels)) == len(axes.lines) == len({line.get_color() for line in axes.lines})
    with pytest.raises(FedmtError, match="rows"):
        plot_simulation([])


def test_the_page_runs_and_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "development" / "theory.md").read_text()
    snippet = page.split("```python\n")[1].split("```")[0]
    exec(snippet, {})
    lines = capsys.readouterr().out.splitlines()
    said = [float(line.split("# ")[1].split(",")[0]) for line in snippet.splitlines() if "# " in line]
    assert [round(float(line), 3) for line in lines[:4]] == said
    assert len(lines) == 4 + 4


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("n", lambda: deviation(-1, 5, 3)),
        ("m", lambda: deviation(5, 2.5, 3)),  # type: ignore[arg-type]
        ("m", lambda: confidence(5, -2)),
        ("n, m", lambda: confidence(0, 0)),
        ("classes", lambda: deviation(5, 5, 0)),
        ("diameter", lambda: deviation(5, 5, 3, diameter=math.inf)),
        ("form", lambda: deviation(5, 5, 3, form="other")),  # type: ignore[arg-type]
        ("proof", lambda: confidence(5, 5, proof="other")),  # type: ignore[arg-type]
        ("empirical", lambda: bound_known(math.nan, 5, 5, 3)),
        ("constant", lambda: bound_estimated(0.1, 5, 5, 3, -1.0)),
        ("m", lambda: bound_estimated(0.1, 5, -5, 3, 1.0)),
        ("coarse_bound", lambda: coarse_bound(0.1)),
        ("fine_error", lambda: coarse_bound(-0.1, classes=3)),
        ("matrix", lambda: coarse_bound(0.1, matrix=torch.ones(2, 2))),
        ("matrix", lambda: inverse_correspondence(torch.tensor([[1.5], [-0.5]]))),
        ("matrix", lambda: inverse_correspondence(torch.ones(3))),
        ("prior", lambda: inverse_correspondence(torch.eye(2), torch.tensor([0.7, 0.7]))),
        ("prior", lambda: inverse_correspondence(torch.eye(2), torch.tensor([0.5, 0.25, 0.25]))),
        ("prior", lambda: inverse_correspondence(torch.eye(2), torch.tensor([math.nan, 1.0]))),
        ("f_reference", lambda: empirical_loss(*[torch.zeros(2, i) for i in (2, 3, 2, 2)], torch.eye(2))),
        ("g_center", lambda: empirical_loss(*[torch.zeros(2, i) for i in (2, 2, 3, 2)], torch.eye(2))),
        ("inverse", lambda: empirical_loss(*[torch.zeros(2, i) for i in (2, 2, 2, 3)], torch.eye(2))),
        ("fine", lambda: World(torch.ones(1), torch.eye(2), torch.eye(2))),
        ("n", lambda: simulate(example_world(), -1, [5])),
    ],
)  # fmt: skip
def test_mistakes_name_the_argument(name: str, call: object) -> None:
    with pytest.raises(FedmtError, match=f"^{name}: "):
        call()  # type: ignore[operator]
