"""Secure aggregation in a config."""

import tomllib

from fedmt.aggregation import Clip, NoGuard
from fedmt.config import build_summing, dump_config, parse_config
from fedmt.config.building import build_guard
from fedmt.privacy.masking.terms import Summing

BENCHMARK = {
    "data": {"source": "fashion_mnist"},
    "wanted": "garment",
    "spaces": {"department": 4},
    "per_class": 2,
    "samples": 20,
    "test_samples": 20,
}


def test_a_run_folder_keeps_what_decides_about_the_weights() -> None:
    """The centers that may be missing can change when a run is resumed, but not how updates are summed."""
    deployment = {"secure_aggregation": True, "threshold": 3, "max_samples": 512, "timeout": 7.0}
    config = parse_config({"benchmark": BENCHMARK, "deployment": deployment})
    kept = tomllib.loads(dump_config(config))
    assert kept["deployment"] == {"secure_aggregation": True, "max_samples": 512}
    assert build_summing(config, 4) == Summing(3, 512)
    again = parse_config(kept)
    assert build_summing(again, 4) == Summing(3, 512)
    assert dump_config(again) == dump_config(config)


def test_without_it_nothing_changes() -> None:
    plain = parse_config({"benchmark": BENCHMARK})
    given = parse_config({"benchmark": BENCHMARK, "deployment": {"threshold": 3, "max_samples": 512}})
    assert dump_config(plain) == dump_config(given)
    assert "deployment" not in tomllib.loads(dump_config(plain))
    assert build_summing(given, 4) is None
    assert isinstance(build_guard(plain), Clip)


def test_there_is_no_guard_where_nobody_sees_a_single_update() -> None:
    config = parse_config({"benchmark": BENCHMARK, "deployment": {"secure_aggregation": True}})
    assert isinstance(build_guard(config), NoGuard)
