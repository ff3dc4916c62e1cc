"""Class priors: how frequent the wanted classes are at a center, and what that changes.

The model's answers assume a *uniform* prior, g_k(x) ~ p(x | k). Samples of a class look alike everywhere, but
the frequency of the class, pi_c(k), differs between centers. With the correspondence M, the joint
distribution of a center's label and the wanted class is W[j, k] = pi(k) M[j, k], and

    posterior     q_i(k) ~ g_k(x_i) W[y_i, k]
    training      cross-entropy of softmax(z + log pi), the logits shifted by the prior of where the sample is
    prediction    softmax(z + log pi*) for whatever prior pi* the user will meet

M, pi or both are unknown. Their estimates maximize the likelihood sum_i log sum_k g_k(x_i) W[y_i, k], which
is concave in W, by expectation maximization (for pi alone: Saerens, Latinne, Decaestecker 2002). Logit
adjustment: Menon et al. 2021. Pure functions of tensors, in float64: they are sums over a whole center, done
once per round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import COLUMN_TOLERANCE, LabelSpace, Posterior
from fedmt.core.pseudo_labels import normalized
from fedmt.core.repeating import repeated

ITERATIONS = 50
"""Number of steps of expectation maximization. Each step costs one pass over a center's [N, K] scores."""


def class_shares(labels: Tensor, classes: int, pseudo_count: float = 1.0) -> Tensor:
    """The shares [K] of the classes among labels int64 [N], with `pseudo_count` added to the count of each
    class.

    A class without samples therefore has a finite logarithm, and equal counts give exactly equal shares.
    Training at the reference center shifts the logits by these shares, and the predictions for its class
    frequencies shift them by the same. So they are exactly the answers that the training fitted.

    >>> class_shares(torch.tensor([0, 0, 1]), 2, pseudo_count=0.5)
    tensor([0.6250, 0.3750])
    """
    counts = torch.bincount(labels, minlength=classes).double() + pseudo_count
    return (counts / counts.sum()).float()


def estimated_prior(
    scores: Tensor,
    matrix: Tensor,
    labels: Tensor,
    doubt: float | None = None,
    iterations: int = ITERATIONS,
) -> Tensor:
    """The prior [K] of a center whose correspondence is known: pi_k = (1/N) sum_i q_i(k).

    scores: g [N, K], rows sum to 1. matrix: M [J, K]. labels: int64 [N].

    A weak model's answers say little about how frequent the classes are, and training on what it believes
    would reinforce its beliefs. So each step is pulled toward the assumption that the wanted classes of one
    label are equally frequent, with the weight `doubt`. If it is None, it is 1 - mean_i max_k q_i(k), the
    doubt of the guesses themselves, which fades as the model learns. If M is a partition, the center's labels
    determine the mass of each label, and only its split is estimated.
    """
    g, m = scores.double(), matrix.double()
    spread = m / m.sum(1, keepdim=True).clamp_min(1e-300)
    base = spread[labels].mean(0)
    base = base / base.sum().clamp_min(1e-300)  # a label may have an all-zero row of M
    prior, rows, guess, doubt_of = base.clone(), m[labels], Posterior(g), _doubts(g, doubt)

    def step() -> None:
        q = guess(prior * rows)
        prior.copy_(q.mean(0).lerp(base, doubt_of(q)))

    repeated(step, iterations, g)
    return prior.to(scores.dtype)


def estimated_joint(
    scores: Tensor, labels: Tensor, classes: int, doubt: float | None = None, iterations: int = ITERATIONS
) -> Tensor:
    """The joint distribution W [J, K] of a center whose correspondence is unknown.

        W[j, k] = (1/N) sum over i with y_i = j of q_i(k)

    M is W divided by its column sums, and these are the prior. classes: J. doubt: as above, the weight of the
    assumption that the labels say nothing about the wanted classes and that all wanted classes are equally
    frequent. It steadies the guesses q, but it is not part of the result: the columns of rare classes would
    consist of little else, and M would say nothing about these classes.
    """
    g = scores.double()
    shares = torch.bincount(labels, minlength=classes).double() / len(labels)
    base = shares[:, None].expand(classes, g.shape[1]) / g.shape[1]
    joint, steadied, guess, doubt_of = base.clone(), base.clone(), Posterior(g), _doubts(g, doubt)

    def step() -> None:
        q = guess(steadied[labels])
        joint.zero_().index_add_(0, labels, q).div_(len(labels))
        steadied.copy_(joint.lerp(base, doubt_of(q)))

    repeated(step, iterations, g)
    return joint.to(scores.dtype)


def _doubts(like: Tensor, doubt: float | None) -> Callable[[Tensor], Tensor]:
    """The weight of the assumption, as opposed to the guesses q [N, K], a scalar from 0 to 1."""
    if doubt is None:
        return lambda q: 1 - q.amax(1).mean()
    fixed = like.new_tensor(doubt)
    return lambda q: fixed


def named_shares(given: Mapping[str, Any], space: LabelSpace, where: str) -> dict[str, float]:
    """Shares by class, in the order of the space, checked and summing to 1. where: prefix of the error
    messages."""
    shares: dict[str, float] = {}
    for name, value in given.items():
        label = space.classes[space.index(str(name), where)]  # a user's classes may be numbers
        number = isinstance(value, Real) and not isinstance(value, bool)  # also one of NumPy
        if not number or not 0 <= value <= 1:
            raise FedmtError(f"{where}: the share of '{label}' is {value!r}, expected a number from 0 to 1.")
        shares[label] = float(value)
    missing = [c for c in space if c not in shares]
    if missing:
        raise FedmtError(
            f"{where}: no share for {listed(missing)}; every class of '{space.name}' needs a share."
        )
    total = sum(shares.values())
    if abs(total - 1) > COLUMN_TOLERANCE:
        raise FedmtError(f"{where}: the shares sum to {total:.6g}, expected 1.")
    return {c: shares[c] / total for c in space}


def answers_for(probabilities: Tensor, prior: Tensor, before: Tensor) -> Tensor:
    """Converts answers [N, K] for the prior `before` to answers for the prior `prior`, both [K].

    >>> answers_for(torch.tensor([[0.5, 0.5]]), torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5]))
    tensor([[0.9000, 0.1000]])
    """
    return normalized(probabilities * (log_prior(prior) - log_prior(before)).exp())


def log_prior(prior: Tensor) -> Tensor:
    """What a prior [K] adds to logits [..., K]. It is finite even for a class that does not occur."""
    return prior.clamp_min(1e-6).log()
