"""A second input, as a user would write it: points in the plane, with their own source and network."""

from dataclasses import dataclass

import torch
from torch import nn

from fedmt.core.labels import LabelSpace
from fedmt.core.section import Section
from fedmt.data.sampleset import SampleSet
from fedmt.data.sources.base import Source
from fedmt.inputs import Input, Views


@dataclass(frozen=True)
class Noise(Views):
    size: float = 0.05
    weak_numbers = strong_numbers = 2

    def weak(self, samples, uniforms):
        return samples + self.size * (uniforms - 0.5)

    def strong(self, views, samples, uniforms):
        return views + 4 * self.size * (uniforms - 0.5)


class PointOptions(Section):
    count: int = 60


@dataclass(frozen=True)
class Points(Input):
    name = "points"
    word = "point"
    views = Noise
    options = PointOptions

    @classmethod
    def of(cls, samples, where):
        return cls(tuple(samples.shape[1:]))

    @property
    def network_arguments(self):
        return {"features": self.shape[0]}


class Clouds(Source):
    input, needs_path = "fedmt_toy:Points", False

    def read(self, request):
        generator = torch.Generator().manual_seed(len(request.where))
        truth = torch.arange(request.options.count) % 3
        centers = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
        samples = centers[truth] + 0.4 * torch.randn(len(truth), 2, generator=generator)
        spaces = {"kind": LabelSpace("kind", ["a", "b", "c"]), "pair": LabelSpace("pair", ["a", "other"])}
        labels = {"kind": truth, "pair": truth.clamp_max(1)}
        return SampleSet(samples, labels, spaces, input=Points)


def network(classes, features):
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))
