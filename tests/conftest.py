"""Shared by the suite: one thread, no deadlines, and a small real federation.

One thread: the suite's tensors are tiny, and threads that wait for each other cost more than they give.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import settings

from fedmt import Center, Federation
from fedmt.backbones import Classifier, pixel_statistics
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.data.fashion_mnist import (
    GARMENT,
    GARMENT_TO_DEPARTMENT,
    GARMENT_TO_LAYER,
    read_fashion_mnist,
)
from fedmt.data.splits import iid_split

torch.set_num_threads(1)
# Examples are judged by what they return, never by how long a shared machine takes over them.
settings.register_profile("fedmt", deadline=None)
settings.load_profile("fedmt")

MakeFederation = Callable[..., Federation]


@pytest.fixture(scope="session")
def make_federation() -> MakeFederation:
    """Bundled images: a reference center, `departments` + `layers` centers, 200 test images."""
    train, test = read_fashion_mnist("train"), read_fashion_mnist("test")
    truth = train.labels["garment"]

    def make(
        per_class: int = 2, departments: int = 2, layers: int = 1, samples: int = 40, seed: int = 0
    ) -> Federation:
        matrices = [GARMENT_TO_DEPARTMENT] * departments + [GARMENT_TO_LAYER] * layers
        split = iid_split(truth, 10, per_class, len(matrices), samples, seed)
        reference = Center("reference", train.images[split.reference], GARMENT, truth[split.reference])
        centers = tuple(
            Center(f"center-{i}", train.images[part], m.coarse, m.map_labels(truth[part]), m, truth[part])
            for i, (part, m) in enumerate(zip(split.centers, matrices, strict=True), 1)
        )
        images, labels = test.images[::10], test.labels["garment"][::10]
        tests = [Center("test", images, GARMENT, labels)]
        for m in {m.coarse.name: m for m in matrices}.values():
            tests.append(Center(f"test ({m.coarse.name})", images, m.coarse, m.map_labels(labels)))
        return Federation(GARMENT, reference, centers, tuple(tests))

    return make


@pytest.fixture
def make_model() -> Callable[[Federation], Classifier]:
    """The small network at starting weights that are the same in every call."""

    def make(federation: Federation) -> Classifier:
        torch.manual_seed(7)
        mean, std = pixel_statistics(federation.reference.images)
        return Classifier(SmallCNN(len(federation.wanted), federation.image_shape[0]), mean, std)

    return make
