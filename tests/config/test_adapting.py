"""Defaults that depend on what is trained."""

import pytest

from fedmt.config.adapting import adapted


@pytest.mark.parametrize(
    ("backbone", "rate"),
    [
        ({"backbone": "resnet18"}, 0.03),
        ({"backbone": "resnet50"}, 0.03),
        ({}, 0.03),  # the default is resnet18
        ({"backbone": "mobilenet_v2"}, 0.01),
        ({"backbone": "timm:efficientnet_b0"}, 0.01),
    ],
)
@pytest.mark.parametrize(
    ("method", "rates"),
    [
        ({}, {"reference_rate": 0.1}),
        ({"name": "fedmt"}, {"reference_rate": 0.1}),
        ({"name": "fedrep"}, {}),  # its head learns only at the reference center
    ],
)
def test_a_pretrained_network_is_trained_at_other_rates(method, rates, backbone, rate):
    model = {"weights": "weights.safetensors", **backbone}
    raw = {"model": model, "training": {"rounds": 3}, "method": method}
    assert adapted(raw)["training"] == {**rates, "learning_rate": rate, "rounds": 3}
    assert raw["training"] == {"rounds": 3}


@pytest.mark.parametrize(
    "raw",
    [
        {"input": "vectors"},
        {"input": "tables"},
        {"input": "text"},
        {"model": {"freeze": True, "head": "mlp"}},
    ],
)
def test_with_features_from_the_start_the_reference_center_weighs_less_in_fedmt(raw):
    assert adapted(raw)["training"] == {"reference_rate": 0.1}
    assert adapted({**raw, "method": {"name": "semifl"}}) == {**raw, "method": {"name": "semifl"}}
    fedtrans = adapted({**raw, "method": {"name": "fedtrans"}})
    assert fedtrans["training"] == {"smallest_reference_batch": 50}
    assert adapted({**raw, "training": {"reference_rate": 1.0}})["training"] == {"reference_rate": 1.0}


@pytest.mark.parametrize(
    ("raw", "rate"),
    [
        ({"method": {"correspondence": "estimated"}, "benchmark": {}}, 0.3),
        ({"method": {"correspondence": "estimated"}, "correspondences": {"b": "b.csv"}}, 0.3),
        ({"wanted": "a", "centers": [{"space": "b"}, {"space": "a"}, {}]}, 0.3),
        ({"wanted": "a", "centers": [{"space": "b"}, {"space": "c", "correspondence": {}}]}, 0.1),
        ({"wanted": "a", "centers": [{"space": "b"}], "correspondences": {"b": "b.csv"}}, 0.1),
        ({"wanted": "a", "centers": [{"space": "a"}, {}]}, 0.1),  # nothing to estimate
        ({"wanted": "a", "centers": "b.csv"}, 0.1),
        ({"benchmark": {}}, 0.1),
    ],
)
def test_the_reference_center_weighs_more_if_every_correspondence_is_estimated(raw, rate):
    assert adapted({**raw, "input": "vectors"})["training"] == {"reference_rate": rate}
    assert "reference_rate" not in adapted(raw).get("training", {})  # images, from random weights
    single = adapted({**raw, "input": "vectors", "method": {"name": "single"}})
    assert "reference_rate" not in single.get("training", {})


@pytest.mark.parametrize("head", [{}, {"head": "linear"}])
def test_a_linear_head_on_a_frozen_backbone_takes_small_steps(head):
    model = {"weights": "resnet18.safetensors", "backbone": "resnet18", "freeze": True, **head}
    assert adapted({"model": model})["training"] == {"learning_rate": 0.003, "reference_rate": 0.1}
    single = adapted({"model": model, "method": {"name": "single"}})
    assert single["training"] == {"learning_rate": 0.003}
    estimated = {"method": {"correspondence": "estimated"}}
    assert adapted({"model": model, **estimated})["training"]["reference_rate"] == 0.1
    other = adapted({"model": {**model, "head": "mlp"}})
    assert other["training"] == {"learning_rate": 0.03, "reference_rate": 0.1}
    assert adapted({"model": {**model, "head": "mlp"}, **estimated})["training"]["reference_rate"] == 0.3


@pytest.mark.parametrize("raw", [{}, {"input": "images"}, {"model": {"backbone": "resnet18"}}])
def test_from_random_weights_the_reference_center_takes_larger_batches(raw):
    for name in ("fedmt", "semifl", "fedrep", "fedtrans"):
        assert adapted({**raw, "method": {"name": name}})["training"] == {"smallest_reference_batch": 50}
    single = {**raw, "method": {"name": "single"}}
    assert adapted(single) == single  # there are no centers whose work it could undo


def test_what_a_config_sets_counts():
    raw = {"model": {"weights": "resnet18.safetensors"}, "training": {"reference_rate": 0.5}}
    assert adapted(raw)["training"] == {"learning_rate": 0.03, "reference_rate": 0.5}


def test_other_configs_are_left_alone():
    for raw in (
        {"model": "resnet18"},
        {"training": {"smallest_reference_batch": 10}},
        {"input": "text", "method": {"name": ["fedmt"]}},
    ):
        assert adapted(raw) == raw
