"""The keys of a benchmark, from the config to the federation: nothing leaks, and every change is reported."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedmt.config import build_federation, dump_config, load_config, parse_config
from fedmt.core.errors import FedmtError
from fedmt.data import ImageOptions, SampleSet
from fedmt.data.center import Center, Federation
from fedmt.data.sources.fashion_mnist import GARMENT_TO_DEPARTMENT, read_fashion_mnist
from fedmt.data.sources.fitzpatrick17k import read_fitzpatrick17k

SKIN = """\
seed = {seed}
[images]
size = 16
[benchmark]
data = {{ source = "fitzpatrick17k", path = "." }}
wanted = "nine"
spaces = {{ three = 3 }}
reference_share = 0.2
test_per_class = 3
at_most = {{ inflammatory = 18 }}
augment_to = [[10, 30], [20, 24]]
{more}
"""

# In the table: the number of lines of each class, and the number of missing images.
CLASSES = {
    "inflammatory": ("non-neoplastic", 41, 1),
    "malignant melanoma": ("malignant", 12, 0),
    "benign dermal": ("benign", 20, 0),
    "malignant dermal": ("malignant", 4, 0),
    "genodermatoses": ("non-neoplastic", 3, 3),
}


@pytest.fixture(scope="module")
def skin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("skin")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    rows = [["md5hash", "label", "nine_partition_label", "three_partition_label"]]
    for name, (broad, count, missing) in CLASSES.items():
        for i in range(count):
            md5 = f"{name.replace(' ', '')}{i:03d}"
            rows.append([md5, "x", name, broad])
            if i >= missing:
                noise = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(noise).resize((20, 16)).save(folder / "images" / f"{md5}.jpg")
    with (folder / "fitzpatrick17k.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def load(folder: Path, text: str) -> tuple[Federation, tuple[str, ...]]:
    path = folder / "run.toml"
    path.write_text(text)
    return build_federation(load_config(path))


def keys(images: Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def everyone(federation: Federation) -> list[Center]:
    return [federation.reference, *federation.centers]


def totals(federation: Federation) -> dict[str, int]:
    """The number of training images of each wanted class."""
    truth = [federation.reference.labels, *(c.truth for c in federation.centers)]
    counts = torch.cat(truth).bincount(minlength=len(federation.wanted)).tolist()
    return dict(zip(federation.wanted, counts, strict=True))


def test_the_papers_rules_on_a_small_scale(skin, monkeypatch):
    # Copies stay identical to their originals, so that each can be recognized.
    monkeypatch.setattr("fedmt.inputs.images.make_copies", lambda images, chosen, *_: images[chosen])
    federation, notes = load(skin, SKIN.format(seed=0, more=""))
    assert federation.wanted.classes == ("benign dermal", "inflammatory", "malignant melanoma")
    assert totals(federation) == {"inflammatory": 18, "malignant melanoma": 30, "benign dermal": 24}
    test, broad = federation.tests
    assert test.labels.bincount().tolist() == [3, 3, 3] and len(broad) == 9
    places = [set(keys(c.images)) for c in everyone(federation)]
    # 18 + (12 - 3) + (20 - 3) originals, none in two places or in the test, with or without copies.
    assert sum(map(len, places)) == len(set.union(*places)) == 18 + 9 + 17
    assert not set.union(*places) & set(keys(test.images))
    # A fifth of each class is at the reference center, including copies: 4 of 18, 2 / 9 of 30, 3 / 17 of 24.
    assert federation.reference.labels.bincount().tolist() == pytest.approx([4, 4, 7], abs=1)
    # The labels belong to the images, in both spaces.
    source = read_fitzpatrick17k(skin, ImageOptions((16, 16)))
    known = {name: dict(zip(keys(source.images), found(source, name), strict=True)) for name in source.spaces}
    for center in (*everyone(federation), *federation.tests):
        said = [center.space.classes[k] for k in center.labels.tolist()]
        assert said == [known[center.space.name][k] for k in keys(center.images)]
    for center in federation.centers:
        said = [federation.wanted.classes[k] for k in center.truth.tolist()]
        assert said == [known["nine"][k] for k in keys(center.images)]
        assert center.correspondence.is_partition
        assert torch.equal(center.labels, center.correspondence.map_labels(center.truth))
    missing, left_out, sampled, copies = notes
    assert "4 of 80 images are missing; 76 used" in missing and "inflammatory 40 of 41" in missing
    assert "benign epidermal (0), benign melanocyte (0), genodermatoses (0)" in left_out
    assert "malignant dermal (4), malignant epidermal (0);" in left_out
    assert "a class needs 7 samples" in left_out  # 3 for the test, 1 + 3 for the centers
    assert sampled == "Sampled down (at_most): inflammatory 18 of 37."
    assert "benign dermal 17 + 7; inflammatory 18; malignant melanoma 9 + 21. In total 44 + 28" in copies


def found(source: SampleSet, name: str) -> list[str]:
    return [source.spaces[name].classes[k] for k in source.labels[name].tolist()]


def test_copies_are_augmented_and_originals_are_not(skin):
    federation, _ = load(skin, SKIN.format(seed=0, more=""))
    plain = load(skin, SKIN.format(seed=0, more="").replace("augment_to", "# "))[0]
    for center, before in zip(everyone(federation), everyone(plain), strict=True):
        n = len(before)
        assert n < len(center) and torch.equal(center.images[:n], before.images)
        assert not set(keys(center.images[n:])) & set(keys(before.images))
    assert torch.equal(federation.tests[0].images, plain.tests[0].images)


def test_the_seed_decides(skin):
    one, again, other = (load(skin, SKIN.format(seed=s, more=""))[0] for s in (1, 1, 2))
    for a, b, c in zip(everyone(one), everyone(again), everyone(other), strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        assert keys(a.images) != keys(c.images)
    assert torch.equal(one.tests[0].images, again.tests[0].images)
    assert set(keys(one.tests[0].images)) != set(keys(other.tests[0].images))


def test_copies_are_not_mirrored_where_images_are_not(skin):
    one, other = (
        load(skin, SKIN.format(seed=0, more=f"[augmentation]\nflip = {flip}"))[0]
        for flip in ("true", "false")
    )
    assert not torch.equal(one.reference.images, other.reference.images)


def test_the_resolved_config_says_the_same(skin):
    (skin / "run.toml").write_text(SKIN.format(seed=0, more="subset = 9\ntest_samples = 7"))
    config = load_config(skin / "run.toml")
    (skin / "resolved.toml").write_text(dump_config(config))
    again = load_config(skin / "resolved.toml")
    assert again.benchmark == config.benchmark
    assert len(build_federation(again)[0].tests[0]) == 7


def test_fewer_than_two_classes_left(skin):
    with pytest.raises(
        FedmtError, match=r"only 1 of the 9 classes of 'nine'.*needs 21 samples.*benign dermal"
    ):
        load(skin, SKIN.format(seed=0, more="").replace("test_per_class = 3", "test_per_class = 17"))


def test_a_test_set_whose_space_is_another(skin):
    """The space has the same name and classes in another order, so numbers would mean other classes."""
    classes = ["malignant", "benign", "non-neoplastic"]
    np.savez(skin / "own.npz", images=np.zeros((9, 16, 16, 3), dtype=np.uint8), labels=classes * 3)
    text = f"""
spaces = {{ three = {classes} }}
images = {{ size = 16 }}
[benchmark]
data = {{ source = "npz", path = "own.npz" }}
test = {{ source = "fitzpatrick17k", path = "." }}
wanted = "three"
spaces = {{ three = 1 }}
per_class = 1
"""
    with pytest.raises(FedmtError, match=r"benchmark\.test: space 'three' has different classes than in"):
        load(skin, text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("inflammatory = 18", "inflamatory = 25", ["at_most", "Did you mean 'inflammatory'?"]),
        ("inflammatory = 18", "inflammatory = 3", ["'inflammatory' has 3 samples", "raise at_most"]),
        ("test_per_class = 3\n", "", ["benchmark.test_per_class", "no test part"]),
        ("spaces = { three = 3 }", "spaces = { nine = 3 }\nsubset = 2", ["benchmark.subset"]),
        ("spaces = { three = 3 }", "spaces = { four = 3 }", ["'four'"]),
    ],
)
def test_mistakes(skin, old, new, said):
    text = SKIN.format(seed=0, more="")
    assert text.count(old) == 1
    with pytest.raises(FedmtError) as error:
        load(skin, text.replace(old, new))
    assert all(part in str(error.value) for part in said), error.value


def test_a_center_of_a_federation_tells_what_is_missing(skin):
    """Not only a benchmark, but also a center that reads such a set reports this, with its name."""
    text = """
wanted = "three"
spaces = { three = ["benign", "malignant", "non-neoplastic"] }
images = { size = 8 }
[reference]
source = "fitzpatrick17k"
path = "."
[[centers]]
name = "goa"
source = "fitzpatrick17k"
path = "."
"""
    federation, notes = load(skin, text)
    assert len(federation.reference) == 76
    assert [n.split(":")[0] for n in notes] == ["center 'reference'", "center 'goa'"]
    assert all("4 of 80 images are missing" in n for n in notes)


# -- on sets with their own test part --------------------------------------------------------------------


def fashion(**options: object) -> tuple[Federation, tuple[str, ...]]:
    spaces = {"department": 2, "layer": 1}
    benchmark = {"data": {"source": "fashion_mnist"}, "wanted": "garment", "spaces": spaces, **options}
    return build_federation(parse_config({"benchmark": benchmark}))


def test_a_subset():
    federation, notes = fashion(per_class=3, samples=40, subset=2, test_samples=50)
    assert notes == ()
    whole = GARMENT_TO_DEPARTMENT
    inside = whole.matrix[:2].sum(0) > 0
    assert federation.wanted.classes == tuple(c for c, i in zip(whole.fine, inside, strict=True) if i)
    assert 2 < len(federation.wanted) < 10
    # The correspondence is a part of that of the whole set.
    department = federation.centers[0].correspondence
    assert department.coarse.classes == whole.coarse.classes[:2]
    assert torch.equal(department.matrix, whole.matrix[:2][:, inside])
    assert (federation.centers[2].correspondence.matrix.sum(1) > 0).all()
    test, departments, _ = federation.tests
    counts = test.labels.bincount(minlength=len(federation.wanted))
    assert counts.sum() == 50 and counts.max() - counts.min() <= 1
    assert torch.equal(departments.labels, department.map_labels(test.labels))
    # Names still match the images.
    for part, center in (("test", test), ("train", federation.reference)):
        data = read_fashion_mnist(part)
        known = dict(zip(keys(data.images), found(data, "garment"), strict=True))
        said = [federation.wanted.classes[k] for k in center.labels.tolist()]
        assert said == [known[k] for k in keys(center.images)]


def test_a_subset_as_large_as_the_space_changes_nothing():
    one, other = fashion(per_class=3, samples=40)[0], fashion(per_class=3, samples=40, subset=99)[0]
    for a, b in zip((*everyone(one), *one.tests), (*everyone(other), *other.tests), strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)


def test_images_set_aside_go_before_the_test_part():
    """This allows options to be chosen on images that are not test images."""
    federation, _ = fashion(per_class=3, samples=40, test_per_class=20)
    held = set(keys(federation.tests[0].images))
    assert federation.tests[0].labels.bincount().tolist() == [20] * 10
    assert held <= set(keys(read_fashion_mnist("train").images))
    assert not held & {k for c in everyone(federation) for k in keys(c.images)}


def test_a_share_with_samples_and_without():
    shared, _ = fashion(reference_share=0.1)
    assert shared.reference.labels.bincount().tolist() == [70] * 10
    assert [len(c) for c in shared.centers] == [2100] * 3
    for options in ({}, {"split": "non-iid"}):
        federation, notes = fashion(reference_share=0.1, samples=90, **options)
        assert torch.equal(federation.reference.images, shared.reference.images)
        assert [len(c) for c in federation.centers] == [90] * 3 and notes == ()
