"""The table [privacy] of a config is read, and rejected if it cannot be satisfied."""

import pytest

from fedmt import FedmtError
from fedmt.config import build_method, dump_config, parse_config

BENCHMARK = {
    "data": {"source": "fashion_mnist"},
    "wanted": "garment",
    "spaces": {"department": 1},
    "per_class": 2,
    "samples": 40,
}


def config(**tables):
    return parse_config({"model": {"backbone": "small_cnn"}, "benchmark": BENCHMARK, **tables})


def test_it_is_the_methods_and_chooses_whose_statistics_are_used():
    found = config(privacy={"epsilon": 8, "delta": 1e-5})
    assert build_method(found).privacy == found.privacy
    assert found.privacy.clip == 1.0 and found.privacy.size is None
    assert found.training.batch_norm == "static-reference"
    assert 'batch_norm = "static-reference"' in dump_config(found) and "[privacy]" in dump_config(found)


def test_without_it_nothing_changes():
    found = config()
    assert build_method(found).privacy is None and found.training.batch_norm == "static"
    assert "privacy" not in dump_config(found)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"training": {"batch_norm": "running"}}, "training.batch_norm: 'running'"),
        ({"method": {"correspondence": "estimated"}}, "method.correspondence: 'estimated'"),
        ({"benchmark": {**BENCHMARK, "samples": None, "augment_to": [[50, 60]]}}, "benchmark.augment_to"),
        ({"privacy": {"epsilon": 0, "delta": 1e-5}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1, "delta": 1.0}}, "privacy.delta"),
        ({"privacy": {"epsilon": float("inf"), "delta": 1e-5}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1}}, "privacy.delta"),
    ],
)
def test_what_cannot_be_kept_is_refused(tables, told):
    with pytest.raises(FedmtError, match=told):
        config(**{"privacy": {"epsilon": 8, "delta": 1e-5}, **tables})
