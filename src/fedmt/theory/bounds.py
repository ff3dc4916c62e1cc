"""The paper's bounds on the generalization error.

n samples (x, y) are labeled in the wanted space (K classes), m samples (x, y~) in a center's (J classes).
f(x) = P(y | x), f~(x) = P(y~ | x), M[j, k] = P(y~ = j | y = k), S[k, j] = P(y = k | y~ = j), and g is a
classifier. The empirical loss compares g with f and with S f~, not with labels, so the bounds explain; they
cannot be computed from data alone. They hold under three conditions (docs/development/theory.md):

* f = S f~ (for the bounds in the wanted space) and f~ = M f (for the one in the center's);
* both sets have the same distribution of x;
* g does not depend on the x that the empirical loss is taken over. The paper says "any classifier based on
  the combined dataset"; for one that memorizes its samples, the statement is false.
"""

from __future__ import annotations

import math
import operator
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.labels import COLUMN_TOLERANCE, project

Form = Literal["printed", "proof", "relaxed"]
Proof = Literal["pooled", "union", "printed"]


def deviation(
    n: int, m: int, classes: int, *, form: Form = "printed", diameter: float | None = None
) -> float:
    """How far the expected error may exceed the empirical loss. With B = `diameter` and L(n) = n log n:

        "printed"  B sqrt(L(n) + L(m)) / (2 (n + m))                  the theorem, 4 (m + n)^2 under the root
        "proof"    B (sqrt(L(n)) + sqrt(L(m))) / (2 (n + m))          the weighted sum of T1 and T2
        "relaxed"  B sqrt(L(n) + L(m)) / (sqrt(2) (n + m))            the proof's last line, 2 (m + n)^2

    printed <= proof <= relaxed. The paper's proof adds T1 and T2, and a sum of roots is not below the root of
    the sum, so it gives the second and (by Cauchy-Schwarz) the third, not the first. The first is right
    nevertheless: Hoeffding's inequality for the pooled n + m samples gives it (`confidence`).

    diameter: what ||g - f||_2 cannot exceed. sqrt(K), as printed, unless given; between two distributions it
    cannot exceed sqrt(2), so the printed term is sqrt(K / 2) times wider than it need be.
    """
    n, m = sample_sizes(n, m)
    width = math.sqrt(_count("classes", classes, 1)) if diameter is None else _number("diameter", diameter)
    ours, theirs = n * math.log(n or 1), m * math.log(m or 1)
    match form:
        case "printed":
            root = math.sqrt(ours + theirs)
        case "proof":
            root = math.sqrt(ours) + math.sqrt(theirs)
        case "relaxed":
            root = math.sqrt(2 * (ours + theirs))
        case _:
            raise FedmtError(f"form: '{form}' is none of 'printed', 'proof', 'relaxed'.")
    return width * root / (2 * (n + m))


def confidence(n: int, m: int, *, proof: Proof = "pooled", estimated: bool = False) -> float:
    """A lower bound on the probability that a bound holds (0 if nothing can be said).

        "pooled"   1 - exp(-(n log n + m log m) / (2 (n + m)))     all n + m samples at once, one side
        "union"    1 - 2 n^(-1/2) - 2 m^(-1/2)                     what the paper's proof gives: T1, T2
        "printed"  1 - 2 max(n, m)^(-1/2)                          what the paper says

    "pooled" holds for each form of `deviation`: the pooled distances are independent, in [0, B], and have
    one mean, so P(mean + deviation < expectation) <= exp(-2 (n + m) deviation^2 / B^2). Its failure
    probability is at most 1.15 max(n, m)^(-1/2), so with M known the printed probability is right too,
    though not by the paper's proof: if T1's bound fails with a and T2's with b, one of them fails with a + b.

    estimated: S-hat must be near S as well, which fails with 2 m^(-1/2) (the paper's lemma, as stated); this
    is added to the failure. The paper prints the same probability in both cases; here "printed" does so too.
    """
    n, m = sample_sizes(n, m)
    theirs = 2 / math.sqrt(m) if m else 0.0
    match proof:
        case "pooled":
            failure = math.exp(-(n * math.log(n or 1) + m * math.log(m or 1)) / (2 * (n + m)))
        case "union":
            failure = theirs + (2 / math.sqrt(n) if n else 0.0)
        case "printed":
            return max(0.0, 1 - 2 / math.sqrt(max(n, m)))
        case _:
            raise FedmtError(f"proof: '{proof}' is none of 'pooled', 'union', 'printed'.")
    return max(0.0, 1 - failure - (theirs if estimated else 0.0))


def bound_known(
    empirical: float, n: int, m: int, classes: int, *, form: Form = "printed", diameter: float | None = None
) -> float:
    """`E ||g - f||_2 <= empirical loss + deviation`, M known (the paper's case 1)."""
    return _number("empirical", empirical) + deviation(n, m, classes, form=form, diameter=diameter)


def bound_estimated(
    empirical: float,
    n: int,
    m: int,
    classes: int,
    constant: float,
    *,
    form: Form = "printed",
    diameter: float | None = None,
) -> float:
    """`bound_known + C sqrt(log m / m)`: S-hat in the empirical loss (the paper's case 2).

    constant: C, which the paper does not give. It stands for `||S-hat - S||_2 <= C sqrt(log m / m)`
    and grows with J, K and the rarity of the rarest label. (The proof has m / (m + n) before this term.)
    """
    known = bound_known(empirical, n, m, classes, form=form, diameter=diameter)
    return known + _number("constant", constant) * (math.sqrt(math.log(m) / m) if m else 0.0)


def coarse_bound(fine_error: float, *, classes: int | None = None, matrix: Tensor | None = None) -> float:
    """`E ||M g - f~||_2 <= sqrt(K) E ||g - f||_2` as printed (`classes`), or with ||M||_2 (`matrix`, [J, K]).

    The second is what the first comes from: ||M||_2 <= sqrt(the largest row sum of M) <= sqrt(K).
    """
    if (classes is None) == (matrix is None):
        raise FedmtError("coarse_bound: give one of 'classes' (K) and 'matrix' (M).")
    if matrix is not None:
        factor = float(torch.linalg.matrix_norm(distributions("matrix", matrix, 2, dim=0), 2))
    else:
        factor = math.sqrt(_count("classes", classes, 1))
    return factor * _number("fine_error", fine_error)


def empirical_loss(
    g_reference: Tensor, f_reference: Tensor, g_center: Tensor, coarse_center: Tensor, inverse: Tensor
) -> float:
    """`(sum_i ||g(x_i^s) - f(x_i^s)||_2 + sum_i ||g(x_i^c) - S f~(x_i^c)||_2) / (n + m)`.

    g and f at the n reference samples: [n, K] each; g and f~ at the m of the centers: [m, K], [m, J];
    inverse: S, [K, J] (`inverse_correspondence`), or an estimate of it.
    """
    if g_reference.shape != f_reference.shape:
        raise FedmtError(
            f"f_reference: {tuple(f_reference.shape)}, expected {tuple(g_reference.shape)} as g's."
        )
    if coarse_center.shape[-1] != inverse.shape[-1]:
        raise FedmtError(
            f"inverse: {inverse.shape[-1]} columns, expected {coarse_center.shape[-1]}, the number of "
            "classes of f~."
        )
    target = project(coarse_center.double(), inverse.double())
    if g_center.shape != target.shape:
        raise FedmtError(f"g_center: {tuple(g_center.shape)}, expected {tuple(target.shape)} as S f~'s.")
    n, m = sample_sizes(len(g_reference), len(g_center))
    first = (g_reference.double() - f_reference.double()).norm(dim=1).sum()
    second = (g_center.double() - target).norm(dim=1).sum()
    return float(first + second) / (n + m)


def inverse_correspondence(matrix: Tensor, prior: Tensor | None = None) -> Tensor:
    """`S[k, j] = M[j, k] prior_k / sum_k' M[j, k'] prior_k'`, [K, J]: P(wanted k | label j), by Bayes.

    matrix: M, [J, K]; prior: P(y), [K], uniform unless given. A label of probability 0 tells nothing: its
    column is the prior. The paper's S = (J / K) M^T is this for a uniform prior under which the labels are
    uniform too (all rows of M have one sum), and only then.
    """
    matrix = distributions("matrix", matrix, 2, dim=0)
    wanted = matrix.shape[1]
    prior = torch.full((wanted,), 1 / wanted) if prior is None else prior
    prior = distributions("prior", prior.to(matrix.device), 1, dim=0)
    if len(prior) != wanted:
        raise FedmtError(f"prior: {len(prior)} classes, expected {wanted} as the columns of M.")
    joint = matrix * prior
    label = joint.sum(1, keepdim=True)
    return torch.where(label > 0, joint / torch.where(label > 0, label, 1.0), prior).T


def distributions(name: str, values: Tensor, dims: int, dim: int) -> Tensor:
    """`values` in float64, checked to be distributions along `dim`, and made exactly so."""
    values = torch.as_tensor(values, dtype=torch.float64)
    if values.dim() != dims or not values.numel():
        raise FedmtError(f"{name}: shape {tuple(values.shape)}, expected {dims} dimensions, none empty.")
    sums = values.sum(dim, keepdim=True)
    if not ((values >= 0).all() and ((sums - 1).abs() <= COLUMN_TOLERANCE).all()):
        raise FedmtError(f"{name}: expected probabilities that sum to 1 along dimension {dim}.")
    return values / sums


def sample_sizes(n: int, m: int) -> tuple[int, int]:
    """n and m, checked."""
    n, m = _count("n", n, 0), _count("m", m, 0)
    if n + m == 0:
        raise FedmtError("n, m: both are 0; a bound needs a sample.")
    return n, m


def _count(name: str, value: SupportsIndex | None, least: int) -> int:
    try:
        count = least - 1 if value is None or isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise FedmtError(f"{name}: {value!r}, expected a whole number of at least {least}.")
    return count


def _number(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise FedmtError(f"{name}: {value!r}, expected a finite number of at least 0.")
    return number
