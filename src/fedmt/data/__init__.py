"""Who has which samples: `Center` and `Federation`, and the sources they are read from, one per file."""

from fedmt.data.center import Center, Federation
from fedmt.data.sampleset import SampleSet
from fedmt.data.sources.cifar100 import cifar100_correspondence, read_cifar100
from fedmt.data.sources.fashion_mnist import read_fashion_mnist
from fedmt.data.sources.fitzpatrick17k import read_fitzpatrick17k
from fedmt.data.sources.folder import read_folder
from fedmt.data.sources.idx import read_idx, read_mnist_folder
from fedmt.data.sources.manifest import read_manifest
from fedmt.data.sources.npz import read_npz
from fedmt.inputs.images.decoding import read_images
from fedmt.inputs.images.shaping import ImageOptions

__all__ = [
    "Center",
    "Federation",
    "ImageOptions",
    "SampleSet",
    "cifar100_correspondence",
    "read_cifar100",
    "read_fashion_mnist",
    "read_fitzpatrick17k",
    "read_folder",
    "read_idx",
    "read_images",
    "read_manifest",
    "read_mnist_folder",
    "read_npz",
]
