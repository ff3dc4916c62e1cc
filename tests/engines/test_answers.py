"""Every number in an answer is checked before it is used."""

import math

import pytest
import torch

pytest.importorskip("flwr")

from fedmt.engines.flower.answers import (
    LeftOut,
    correspondence_of,
    metrics_of,
    prior_of,
    samples_of,
    statistics_of,
    variances_stay_positive,
)

HONEST = {"confident_share": 0.5, "filled_columns": 2, "correspondence_error": 1.5, "losses": {"loss": 2.5}}


def test_what_is_plausible_is_taken() -> None:
    assert metrics_of({**HONEST, "something else": "text"}) == HONEST
    assert metrics_of(None) == {} and metrics_of({"losses": []}) == {}
    assert samples_of({"samples": 20}, 20) == 20.0
    matrix = torch.tensor([[1.0, 0.25, 0.0], [0.0, 0.75, 1.0]])
    assert correspondence_of(matrix, 2, 3) is matrix
    prior, size = prior_of(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([7]), 3)
    assert prior.tolist() == [0.5, 0.5, 0.0] and size.shape == () and int(size) == 7


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"confident_share": -1e308}, "its confident_share is -1e+308, expected 0 to 1"),
        ({"confident_share": 10**400}, "its confident_share is about 2^1328, expected 0 to 1"),
        ({"pseudo_label_accuracy": 1.1}, "its pseudo_label_accuracy is 1.1"),
        ({"prior_error": math.nan}, "its prior_error is nan"),
        ({"filled_columns": True}, "its filled_columns is True"),
        ({"correspondence_error": "<script>" * 99}, "its correspondence_error is '<script>"),
        ({"losses": {"loss": 1e300}}, "one of its losses is 1e+300"),
        ({"losses": {"loss": 10**400}}, "one of its losses is about 2^1328"),
    ],
)
def test_a_measure_that_cannot_be(lie: dict, said: str) -> None:
    with pytest.raises(LeftOut) as error:
        metrics_of({**HONEST, **lie})
    assert said in str(error.value) and len(str(error.value)) < 120


@pytest.mark.parametrize("samples", [0, -1, 10**9, 10**400, 2.5, True, None, "many", 21])
def test_a_number_of_samples_that_cannot_be(samples: object) -> None:
    with pytest.raises(LeftOut, match="it reports"):
        samples_of({"samples": samples}, 20)


@pytest.mark.parametrize("entry", [-5.0, 1e30, math.nan, math.inf, 0.9])
def test_an_m_hat_that_is_none(entry: float) -> None:
    matrix = torch.tensor([[1.0, 0.25, 0.0], [0.0, 0.75, 1.0]])
    matrix[0, 1] = entry
    with pytest.raises(LeftOut, match="columns sum to 1"):
        correspondence_of(matrix, 2, 3)
    with pytest.raises(LeftOut, match="not a matrix"):
        correspondence_of(matrix.T, 2, 3)


@pytest.mark.parametrize(
    ("prior", "size", "said"),
    [
        ([1.5, -0.5, 0.0], 7, "not have one share"),
        ([0.5, 0.4, 0.0], 7, "not have one share"),
        ([0.5, 0.5], 7, "not have one share"),
        ([0.5, 0.5, 0.0], 10**9, "1000000000 samples"),
        ([0.5, 0.5, 0.0], None, "without its number"),
    ],
)
def test_a_prior_that_is_none(prior: list, size: int | None, said: str) -> None:
    with pytest.raises(LeftOut, match=said):
        prior_of(torch.tensor(prior), None if size is None else torch.tensor(size), 3)


OWN = {"bn.running_mean": torch.tensor([0.5, -1.0]), "bn.running_var": torch.tensor([4.0, 0.0])}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("bn.running_var", -1e6, "a variance of -1e\\+06 in 'bn.running_var'"),
        ("bn.running_var", 1e30, "a variance of 1e\\+30 in 'bn.running_var', but at most 4e\\+04"),
        ("bn.running_var", math.nan, "NaN or Inf"),
        ("bn.running_mean", 1e12, "a mean in 'bn.running_mean' that is 1e\\+12 away"),
        ("bn.running_mean", -202.0, "but at most 200 is plausible"),
    ],
)
def test_statistics_that_no_samples_have(key: str, value: float, said: str) -> None:
    # A channel that is dead only at the reference center is no reason to reject an answer.
    honest = {"bn.running_mean": torch.tensor([3.5, 2.0]), "bn.running_var": torch.tensor([40.0, 9.0])}
    assert statistics_of(honest, OWN).keys() == OWN.keys()
    changed = honest[key].clone()
    changed[1] = value
    with pytest.raises(LeftOut, match=said):
        statistics_of({**honest, key: changed}, OWN)
    with pytest.raises(LeftOut, match="not belong to this model"):
        statistics_of({key: changed}, OWN)


def test_an_update_may_not_make_a_variance_negative() -> None:
    variances_stay_positive(OWN, {"bn.running_var": torch.tensor([-4.0, 0.0])})
    with pytest.raises(LeftOut, match=r"a variance in 'bn.running_var' negative"):
        variances_stay_positive(OWN, {"bn.running_var": torch.tensor([-4.5, 0.0])})
