"""Who has which images: `Center` and `Federation`, and the sources they are read from, one a file."""

from fedmt.data.center import Center, Federation
from fedmt.data.cifar100 import cifar100_correspondence, read_cifar100
from fedmt.data.fashion_mnist import read_fashion_mnist
from fedmt.data.fitzpatrick17k import read_fitzpatrick17k
from fedmt.data.folder import read_folder
from fedmt.data.idx import read_idx, read_mnist_folder
from fedmt.data.images import read_images
from fedmt.data.imageset import ImageOptions, ImageSet
from fedmt.data.manifest import read_manifest
from fedmt.data.npz import read_npz

__all__ = [
    "Center",
    "Federation",
    "ImageOptions",
    "ImageSet",
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
