"""Defaults that follow from what is trained."""

from fedmt.config.adapting import PRETRAINED, adapted


def test_a_pretrained_network_is_trained_at_other_rates():
    raw = {"model": {"weights": "resnet18.safetensors"}, "training": {"rounds": 3, "reference_rate": 0.5}}
    assert adapted(raw)["training"] == {**PRETRAINED, "rounds": 3, "reference_rate": 0.5}
    assert raw["training"] == {"rounds": 3, "reference_rate": 0.5}


def test_other_configs_are_left_alone():
    for raw in ({}, {"model": {}}, {"model": {"weights": None}}, {"model": "resnet18"}):
        assert adapted(raw) == raw
