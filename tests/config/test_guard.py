"""`aggregation.guard`: a name, or a table with a name and options."""

import tomllib

import pytest

from fedmt.aggregation import Clip, NoGuard
from fedmt.aggregation.guards import GeometricMedian, TrimmedMeanGuard
from fedmt.config import build_guard, build_strategy, dump_config, parse_config
from fedmt.core.errors import FedmtError

BENCHMARK = {
    "data": {"source": "fashion_mnist"},
    "wanted": "garment",
    "spaces": {"department": 2},
    "per_class": 1,
}


def config(guard=None, **tables):
    aggregation = {} if guard is None else {"aggregation": {"name": "fedavgm", "guard": guard}}
    return parse_config({"benchmark": BENCHMARK, **aggregation, **tables})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Clip()),
        ("clip", Clip()),
        ("none", NoGuard()),
        ({"multiple": 3}, Clip(multiple=3)),
        ({"name": "trimmed_mean", "trim": 0.3, "mix": 2}, TrimmedMeanGuard(mix=2, trim=0.3)),
        ({"name": "geometric_median"}, GeometricMedian()),
    ],
)
def test_a_name_or_a_table(given, expected):
    read = config(given)
    assert build_guard(read) == expected and build_strategy(read).name == "fedavgm"
    again = parse_config(tomllib.loads(dump_config(read)))
    assert build_guard(again) == expected and dump_config(again) == dump_config(read)


def test_the_default_is_not_written_so_that_old_runs_resume():
    assert dump_config(config()) == dump_config(config("clip")) and "guard" not in dump_config(config())
    assert "keep_checkpoints" not in dump_config(config(keep_checkpoints=9))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("clipp", "no guard 'clipp'. Did you mean 'clip'?"),
        (3, "3 given, expected a name or a table"),
        ({"name": "median", "trim": 0.1}, "'median' has no option 'trim'. Known: 'mix'"),
        ({"multiple": 0}, "aggregation.guard.multiple: 0.0 given, expected at least 1"),
        ({"multiple": "much"}, "aggregation.guard.multiple"),
    ],
)
def test_mistakes(given, said):
    with pytest.raises(FedmtError) as error:
        config(given)
    assert said in str(error.value)


def test_fltrust_needs_the_reference_center_in_every_round():
    config("fltrust")
    for tables in ({"method": {"name": "fedtrans"}}, {"training": {"reference_epochs": 0}}):
        with pytest.raises(FedmtError, match="'fltrust' compares each update with the reference center's"):
            config("fltrust", **tables)
