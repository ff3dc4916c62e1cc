"""Random pixels in the shape of the paper's CIFAR-100 runs, because speed does not depend on the content."""

from __future__ import annotations

import warnings

import torch

from fedmt import Center, Correspondence, Federation, LabelSpace
from fedmt.backbones import Classifier
from fedmt.backbones.resnet import resnet18
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images import per_channel
from fedmt.methods import FedMT, Training

warnings.simplefilter("error")  # a benchmark that falls back to the step-by-step engine measures nothing

FINE, COARSE = 100, 20
REFERENCE = 2500
"""Samples of the reference center, 25 per class."""


def random_federation(centers: int = 10, samples: int = 4000, tests: int = 10_000) -> Federation:
    fine = LabelSpace("fine", [f"fine {i}" for i in range(FINE)])
    coarse = LabelSpace("coarse", [f"coarse {i}" for i in range(COARSE)])
    m = Correspondence(torch.eye(COARSE).repeat_interleave(FINE // COARSE, 1).tolist(), fine, coarse)
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> torch.Tensor:
        return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)

    def labels(count: int, classes: int) -> torch.Tensor:
        return torch.randint(classes, (count,), generator=generator)

    reference = Center("reference", images(REFERENCE), fine, labels(REFERENCE, FINE))
    others = tuple(
        Center(f"center-{i:03}", images(samples), coarse, labels(samples, COARSE), m) for i in range(centers)
    )
    pixels = images(tests)
    sets = (
        Center("test", pixels, fine, labels(tests, FINE)),
        Center("test (coarse)", pixels, coarse, labels(tests, COARSE)),
    )
    return Federation(fine, reference, others, sets)


def engine(federation: Federation, batch: int, graphs: bool, epochs: int = 5, seed: int = 0) -> LocalEngine:
    """FedMT with the paper's setting and three views. With xi = 0, every sample is confident. Otherwise
    none would be, because the pixels are random."""
    training = Training(
        local_epochs=epochs, batch_size=batch, reference_epochs=5, supervised_views="weak+strong",
        warmup_epochs=1, learning_rate=0.03, clip=1.0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Classifier(resnet18(FINE, 3, max_pool=False), per_channel([0.5] * 3), per_channel([0.25] * 3))
    method = FedMT(training, xi=0.0, soft=False, projection="all")
    return LocalEngine(federation, method, model, seed, torch.device("cuda"), graphs=graphs)


def images_a_round(federation: Federation, batch: int, epochs: int = 5) -> int:
    """Views in the steps of a round: three per sample at a center, two at the reference center."""
    at_centers = sum(-(-epochs * len(c) // batch) * batch * 3 for c in federation.centers)
    return at_centers + 5 * REFERENCE * 2
