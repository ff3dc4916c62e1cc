"""From a config to a federation: every source, both ways to write it, and what must be rejected."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.data.center import Federation
from fedmt.data.sources.fashion_mnist import GARMENT_TO_DEPARTMENT, GARMENT_TO_LAYER, read_fashion_mnist

DIAGNOSIS = ("melanoma", "nevus", "keratosis")

CONFIG = """\
wanted = "diagnosis"

[spaces]
diagnosis = ["melanoma", "nevus", "keratosis"]
triage = ["malignant", "benign"]
look = ["dark", "rough"]

[correspondences]
triage = "triage.csv"

[reference]
source = "folder"
path = "reference"

[[centers]]
name = "goa"
source = "npz"
path = "goa.npz"
space = "look"

[[centers]]
name = "berlin"
source = "manifest"
path = "berlin.csv"
space = "triage"
label_column = "urgency"

[[centers]]
name = "cairo"
source = "npz"
path = "cairo.npz"
space = "look"
correspondence = { melanoma = "dark", nevus = { dark = 0.75, rough = 0.25 }, keratosis = "rough" }

[[centers]]
name = "delhi"
source = "folder"
path = "delhi"

[[centers]]
name = "essen"
source = "npz"
path = "essen.npz"
space = "diagnosis"

[[centers]]
name = "faro"
source = "folder"
path = "faro"
space = "triage"
correspondence = { melanoma = "malignant", nevus = "benign", keratosis = "malignant" }

[[tests]]
source = "folder"
path = "test"

[[tests]]
source = "manifest"
path = "test.csv"
space = "triage"
label_column = "urgency"
"""

TRIAGE = "triage,nevus,melanoma,keratosis\nbenign,1,0,0.9\nmalignant,0,1,0.1\n"


def picture(path: Path, shade: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (size, size), shade).save(path)


def table(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def archive(path: Path, shades: list[int], size: int = 8, **arrays: object) -> None:
    images = np.stack([np.full((size, size), shade, dtype=np.uint8) for shade in shades])
    np.savez(path, images=images, **{k: np.array(v) for k, v in arrays.items()})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that CONFIG names. The shade identifies a picture: tens for the center, units for the
    image."""
    for k, name in enumerate(DIAGNOSIS):
        for i in range(2):
            picture(tmp_path / "reference" / name / f"{i}.png", 10 + 2 * k + i)
        picture(tmp_path / "test" / name / "0.png", 100 + k)
    for i in range(4):
        picture(tmp_path / "scans" / f"{i}.png", 20 + i)
    rows = [("patient", "image", "urgency")]
    rows += [(f"p{i}", f"scans/{i}.png", ("benign", "malignant")[i % 2]) for i in range(4)]
    table(tmp_path / "berlin.csv", rows)
    table(tmp_path / "test.csv", [*rows[:1], rows[2], rows[1]])
    # It has a different order of classes, so labels must be matched by name.
    archive(tmp_path / "cairo.npz", [30, 31, 32], labels=[0, 1, 1], classes=["rough", "dark"])
    archive(tmp_path / "goa.npz", [70, 71], labels=["dark", "dark"])
    picture(tmp_path / "delhi" / "a.png", 40)
    picture(tmp_path / "delhi" / "more" / "b.png", 41)
    archive(tmp_path / "essen.npz", [50, 51], labels=["keratosis", "melanoma"])
    for i, name in enumerate(("benign", "malignant")):
        picture(tmp_path / "faro" / name / "0.png", 60 + i)
    (tmp_path / "triage.csv").write_text(TRIAGE)
    (tmp_path / "federation.toml").write_text(CONFIG)
    return tmp_path


def load(folder: Path, text: str = CONFIG) -> Federation:
    path = folder / "federation.toml"
    path.write_text(text)
    federation, notes = build_federation(load_config(path))
    assert notes == ()
    return federation


def error_of(folder: Path, text: str = CONFIG) -> str:
    with pytest.raises(FedmtError) as error:
        load(folder, text)
    return str(error.value)


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must stand once in the text"
    return text.replace(old, new)


def shades(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


# -- a federation of the user's own -------------------------------------------------------------------


def test_every_source(folder, monkeypatch):
    monkeypatch.chdir("/")  # paths are relative to the config, not to the working directory
    federation = load(folder)
    assert federation.wanted.classes == DIAGNOSIS
    assert federation.input.shape == (1, 8, 8)
    reference = federation.reference
    # Class folders are in sorted order, and labels are in the order of [spaces].
    assert shades(reference.images) == [14, 15, 10, 11, 12, 13]
    assert reference.labels.tolist() == [2, 2, 0, 0, 1, 1]
    centers = {c.name: c for c in federation.centers}
    assert list(centers) == ["berlin", "cairo", "delhi", "essen", "faro", "goa"]  # not the config's order
    expected = {
        "berlin": ("triage", [20, 21, 22, 23], [1, 0, 1, 0]),
        "cairo": ("look", [30, 31, 32], [1, 0, 0]),
        "essen": ("diagnosis", [50, 51], [2, 0]),
        "faro": ("triage", [60, 61], [1, 0]),
        "goa": ("look", [70, 71], [0, 0]),
    }
    for name, (space, images, labels) in expected.items():
        center = centers[name]
        assert center.space.name == space and shades(center.images) == images
        assert center.labels.tolist() == labels and center.truth is None
    assert shades(centers["delhi"].images) == [40, 41]
    assert centers["delhi"].space is None and centers["delhi"].labels is None
    assert [s.name for s in federation.spaces] == ["diagnosis", "triage", "look"]


def test_correspondences_by_file_by_center_and_none(folder):
    centers = {c.name: c for c in load(folder).centers}
    matrix = torch.tensor([[1, 0, 0.1], [0, 1, 0.9]])  # rows malignant, benign; columns as in DIAGNOSIS
    torch.testing.assert_close(centers["berlin"].correspondence.matrix, matrix)
    # The center's own correspondence takes precedence over that of its space.
    assert centers["faro"].correspondence.matrix.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert centers["cairo"].correspondence.matrix.tolist() == [[1, 0.75, 0], [0, 0.25, 1]]
    assert centers["essen"].correspondence.matrix.tolist() == torch.eye(3).tolist()
    assert centers["goa"].correspondence is None and centers["delhi"].correspondence is None


def test_a_center_with_a_correspondence_file_of_its_own(folder):
    (folder / "faro.csv").write_text(TRIAGE.replace("0.9", "0.5").replace("0.1", "0.5"))
    own = '{ melanoma = "malignant", nevus = "benign", keratosis = "malignant" }'
    centers = {c.name: c for c in load(folder, changed(CONFIG, own, '"faro.csv"')).centers}
    assert centers["faro"].correspondence.matrix[:, 2].tolist() == [0.5, 0.5]
    assert centers["berlin"].correspondence.matrix[:, 2].tolist() == pytest.approx([0.1, 0.9])


def test_an_inline_correspondence_of_a_space(folder):
    text = changed(
        CONFIG, '"triage.csv"', '{ melanoma = "malignant", nevus = "benign", keratosis = "benign" }'
    )
    centers = {c.name: c for c in load(folder, text).centers}
    assert centers["berlin"].correspondence.matrix.tolist() == [[1, 0, 0], [0, 1, 1]]


def test_tests_in_two_spaces(folder):
    wanted, other = load(folder).tests
    assert wanted.space.name == "diagnosis" and shades(wanted.images) == [102, 100, 101]
    assert wanted.labels.tolist() == [2, 0, 1]
    assert other.space.name == "triage" and shades(other.images) == [21, 20]
    assert other.labels.tolist() == [0, 1]


def test_a_test_in_a_space_whose_centers_disagree(folder):
    """No center's correspondence decides for the others, whatever its position."""
    partition = '{ melanoma = "malignant", nevus = "benign", keratosis = "malignant" }'
    alone = CONFIG[: CONFIG.rindex("[[tests]]")]
    wanted, derived = load(folder, changed(alone, '"triage.csv"', partition)).tests
    assert derived.space.name == "triage" and wanted.labels.tolist() == [2, 0, 1]
    assert derived.labels.tolist() == [0, 0, 1]
    for text in (
        alone,  # berlin's correspondence is not certain
        changed(alone, '"triage.csv"', partition.replace("malignant", "benign", 1)),
    ):
        path = folder / "federation.toml"
        path.write_text(text)
        federation, notes = build_federation(load_config(path))
        assert [t.space.name for t in federation.tests] == ["diagnosis"]
        assert len(notes) == 1 and "space 'triage'" in notes[0] and "add [[tests]]" in notes[0]


def test_a_test_that_nobody_answers(folder):
    text = changed(CONFIG, 'look = ["dark", "rough"]', 'look = ["dark", "rough"]\nstage = ["early", "late"]')
    table(folder / "stage.csv", [("image", "stage"), ("test/nevus/0.png", "late")])
    path = folder / "federation.toml"
    path.write_text(
        text + '[[tests]]\nsource = "manifest"\npath = "stage.csv"\nspace = "stage"\nlabel_column = "stage"\n'
    )
    _, notes = build_federation(load_config(path))
    why = "so no model predicts in it, and the test is left out."
    assert notes == (f"test 3: no center labels in space 'stage', {why}",)


def test_the_test_of_a_set_that_has_a_test_part_is_that_part(folder):
    """If training images were the test set, every accuracy would be silently too high."""
    garments = read_fashion_mnist("test").spaces["garment"].classes
    text = f"""
wanted = "garment"
spaces = {{ garment = {list(garments)} }}
[reference]
source = "fashion_mnist"
[[centers]]
name = "a"
source = "fashion_mnist"
[[tests]]
source = "fashion_mnist"
"""
    federation = load(folder, text)
    assert len(federation.reference) == len(federation.centers[0]) == 7000
    assert torch.equal(federation.tests[0].images, read_fashion_mnist("test").images)
    chosen = load(folder, text + 'split = "train"\n')
    assert len(chosen.tests[0]) == 7000  # the user asked for it explicitly


def test_images_are_brought_to_one_shape(folder):
    picture(folder / "delhi" / "a.png", 40, size=16)
    assert "size" in error_of(folder)
    federation = load(folder, CONFIG + "[images]\nsize = [4, 6]\nchannels = 3\n")
    assert federation.input.shape == (3, 4, 6)
    assert all(c.images.shape[1:] == (3, 4, 6) for c in (*federation.centers, *federation.tests))
    assert load(folder, CONFIG + "[images]\nsize = 5\n").input.shape == (1, 5, 5)


def test_an_unlabeled_center_needs_no_labels_in_its_files(folder):
    """Labels in the files, good or bad, are not read."""
    for name, arrays in (("none", {}), ("numbers", {"labels": [1, 2]}), ("other", {"labels": ["x", "y"]})):
        archive(folder / f"{name}.npz", [80, 81], **arrays)
        text = changed(CONFIG, 'source = "folder"\npath = "delhi"', f'source = "npz"\npath = "{name}.npz"')
        center = {c.name: c for c in load(folder, text).centers}["delhi"]
        assert shades(center.images) == [80, 81] and center.labels is None
    text = changed(CONFIG, 'source = "folder"\npath = "delhi"', 'source = "manifest"\npath = "delhi.csv"')
    table(folder / "delhi.csv", [("image",), ("delhi/a.png",)])
    assert {c.name: len(c) for c in load(folder, text).centers}["delhi"] == 1


# -- what must be rejected -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('wanted = "diagnosis"', 'wanted = "diagnoses"', ["'diagnoses'", "Did you mean 'diagnosis'?"]),
        ('space = "diagnosis"', 'space = "diagnosi"', ["'essen'", "Did you mean 'diagnosis'?"]),
        ('path = "test.csv"\nspace = "triage"', 'path = "test.csv"\nspace = "x"', ["test 2", "'x'"]),
        ('path = "essen.npz"\n', "", ["'essen'", "path"]),
        ('path = "essen.npz"', 'path = "esen.npz"', ["esen.npz", "does not exist"]),
        ('path = "delhi"', 'path = "dehli"', ["dehli", "does not exist"]),
        ('path = "delhi"', 'path = "delhi"\ncorrespondence = { a = "b" }', ["'delhi'", "no space"]),
        ('name = "essen"', 'name = "faro"', ["'faro'", "more than once"]),
        ('name = "essen"', 'name = "reference"', ["'reference'", "more than once"]),
        ('look = ["dark", "rough"]', 'look = ["dark", "dark"]', ["'look'", "'dark'", "more than once"]),
        ('triage = "triage.csv"', 'triage = "none.csv"', ["none.csv"]),
    ],
)
def test_mistakes_in_the_config(folder, old, new, said):
    message = error_of(folder, changed(CONFIG, old, new))
    assert all(part in message for part in said), message


def test_a_correspondence_for_no_space(folder):
    """Otherwise a misspelled name would silently mean that M is estimated instead of given."""
    message = error_of(folder, changed(CONFIG, 'triage = "triage.csv"', 'traige = "triage.csv"'))
    assert "traige" in message and "Did you mean 'triage'?" in message


def test_a_correspondence_for_the_wanted_space(folder):
    said = error_of(folder, changed(CONFIG, 'triage = "triage.csv"', 'diagnosis = "triage.csv"'))
    assert "correspondences.diagnosis: 'diagnosis' is the wanted space" in said and "'triage', 'look'" in said


def test_a_mistake_in_a_correspondence_that_centers_share_is_told_once(folder):
    text = changed(
        CONFIG, '"triage.csv"', '{ melanom = "malignant", nevus = "benign", keratosis = "benign" }'
    )
    own = 'correspondence = { melanoma = "malignant", nevus = "benign", keratosis = "malignant" }\n'
    said = error_of(folder, changed(text, own, ""))  # the error is now about berlin and faro
    assert said.count("\n") == 0 and "federation.toml: correspondences.triage: label 'melanom'" in said
    assert "Did you mean 'melanoma'?" in said


def test_a_reference_center_that_lacks_a_class(folder):
    for image in (folder / "reference" / "nevus").iterdir():
        image.unlink()
    (folder / "reference" / "nevus").rmdir()
    _, notes = build_federation(load_config(folder / "federation.toml"))
    assert len(notes) == 1 and "center 'reference': no image of 'nevus'" in notes[0]


def test_a_correspondence_of_a_center_in_the_wanted_space(folder):
    """It would be ignored, because such a center's labels are the wanted ones."""
    text = changed(
        CONFIG,
        'space = "diagnosis"',
        'space = "diagnosis"\ncorrespondence = { melanoma = "nevus", nevus = "nevus", keratosis = "nevus" }',
    )
    assert "'essen'" in error_of(folder, text)


def test_labels_that_are_missing(folder):
    archive(folder / "essen.npz", [50, 51])
    message = error_of(folder)
    assert "'essen'" in message and "'diagnosis'" in message


def test_a_label_outside_the_space(folder):
    archive(folder / "essen.npz", [50, 51], labels=["keratosis", "melanom"])
    message = error_of(folder)
    assert "essen.npz" in message and "'melanom'" in message and "Did you mean 'melanoma'?" in message


def test_images_of_another_shape(folder):
    archive(folder / "essen.npz", [50, 51], size=9, labels=["keratosis", "melanoma"])
    message = error_of(folder)
    assert "'essen'" in message and "images.size" in message


# -- a benchmark ------------------------------------------------------------------------------------------

FASHION = """\
seed = {seed}
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 2, layer = 1 }}
per_class = 3
samples = 40
{more}
"""


def identities(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_a_benchmark_iid(folder):
    federation = load(folder, FASHION.format(seed=1, more=""))
    assert federation.reference.labels.bincount().tolist() == [3] * 10
    assert [(c.name, c.space.name, len(c)) for c in federation.centers] == [
        ("center-1", "department", 40),
        ("center-2", "department", 40),
        ("center-3", "layer", 40),
    ]
    for center in federation.centers:
        matrix = GARMENT_TO_LAYER if center.space.name == "layer" else GARMENT_TO_DEPARTMENT
        assert center.correspondence == matrix
        assert torch.equal(center.labels, matrix.map_labels(center.truth))
        assert center.truth.bincount().tolist() == [4] * 10
    # The truth belongs to the images, and is not in some other order.
    train = read_fashion_mnist("train")
    known = dict(
        zip((i.numpy().tobytes() for i in train.images), train.labels["garment"].tolist(), strict=True)
    )
    for center in federation.centers:
        assert center.truth.tolist() == [known[i.numpy().tobytes()] for i in center.images]
    everyone = [identities(c.images) for c in (federation.reference, *federation.centers)]
    assert sum(map(len, everyone)) == len(set.union(*everyone)) == 30 + 3 * 40
    assert [(t.name, t.space.name, len(t)) for t in federation.tests] == [
        ("test", "garment", 2000),
        ("test (department)", "department", 2000),
        ("test (layer)", "layer", 2000),
    ]
    test = read_fashion_mnist("test")
    assert torch.equal(federation.tests[0].images, test.images)
    for found in federation.tests:
        assert torch.equal(found.labels, test.labels[found.space.name])


def test_a_benchmark_follows_from_its_seed(folder):
    one, again, other = (load(folder, FASHION.format(seed=s, more="")) for s in (1, 1, 2))
    for name in ("images", "labels", "truth"):
        assert all(
            torch.equal(getattr(a, name), getattr(b, name))
            for a, b in zip(one.centers, again.centers, strict=True)
        )
    assert not torch.equal(one.centers[0].images, other.centers[0].images)
    assert not torch.equal(one.reference.images, other.reference.images)


def test_a_benchmark_non_iid(folder):
    federation = load(folder, FASHION.format(seed=1, more='split = "non-iid"\ngamma = 0.9'))
    assert federation.reference.labels.bincount().tolist() == [3] * 10
    for center in federation.centers:
        counts = center.truth.bincount(minlength=10).sort(descending=True).values
        assert counts.sum() == 40
        assert counts[:2].sum() > counts[2:].sum()  # two majority classes
    scarce = folder / "scarce.toml"
    scarce.write_text(FASHION.format(seed=1, more='split = "non-iid"').replace("= 40", "= 1800"))
    _, notes = build_federation(load_config(scarce))
    assert len(notes) == 1 and "repeats" in notes[0]


def test_as_many_samples_as_there_are(folder):
    federation = load(folder, FASHION.format(seed=1, more="").replace("samples = 40\n", ""))
    assert [len(c) for c in federation.centers] == [(7000 - 30) // 3] * 3


def test_a_split_said_of_the_data_is_not_that_of_the_test(folder):
    """`data.split = "train"` means the same as the default: the test images are still the test part."""
    text = FASHION.format(seed=1, more="").replace('"fashion_mnist"', '"fashion_mnist", split = "train"')
    federation = load(folder, text)
    assert torch.equal(federation.tests[0].images, read_fashion_mnist("test").images)


NPZ = """\
[spaces]
diagnosis = ["melanoma", "nevus", "keratosis"]
triage = ["malignant", "benign"]
[correspondences]
triage = { melanoma = "malignant", nevus = "benign", keratosis = "benign" }
[benchmark]
data = { source = "npz", path = "train.npz" }
test = { source = "npz", path = "heldout.npz" }
wanted = "diagnosis"
spaces = { triage = 2, diagnosis = 1 }
per_class = 2
samples = 6
"""


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    archive(tmp_path / "train.npz", list(range(30)), labels=[DIAGNOSIS[i % 3] for i in range(30)])
    archive(tmp_path / "heldout.npz", [200, 201, 202, 203], labels=[DIAGNOSIS[i % 3] for i in range(4)])
    return tmp_path


def test_a_benchmark_with_a_derived_space(archives):
    federation = load(archives, NPZ)
    assert [(c.name, c.space.name) for c in federation.centers] == [
        ("center-1", "triage"),
        ("center-2", "triage"),
        ("center-3", "diagnosis"),
    ]
    for center in federation.centers:
        truth = [shade % 3 for shade in shades(center.images)]
        assert center.truth.tolist() == truth
        labels = truth if center.space.name == "diagnosis" else [0 if k == 0 else 1 for k in truth]
        assert center.labels.tolist() == labels
    assert federation.centers[0].correspondence.matrix.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert federation.centers[2].correspondence.matrix.tolist() == torch.eye(3).tolist()
    wanted, derived = federation.tests  # the wanted space is not tested twice
    assert wanted.labels.tolist() == [0, 1, 2, 0] and derived.labels.tolist() == [0, 1, 1, 0]
    assert shades(wanted.images) == [200, 201, 202, 203]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('test = { source = "npz", path = "heldout.npz" }\n', "", ["benchmark.test"]),
        ("triage = { melanoma", "# ", ["'triage'", "correspondences.triage"]),
        ("triage = 2", "traige = 2", ["'traige'", "Did you mean 'triage'?"]),
        ('nevus = "benign"', "nevus = { benign = 0.5, malignant = 0.5 }", ["'triage'", "partition"]),
        ("per_class = 2", "per_class = 20", ["'melanoma'", "per_class"]),
        ("samples = 6", "samples = 60", ["samples"]),
        ("samples = 6", 'split = "non-iid"', ["samples"]),
        ('wanted = "diagnosis"', 'wanted = "diagnoses"', ["'diagnoses'", "[spaces]"]),
    ],
)
def test_mistakes_in_a_benchmark(archives, old, new, said):
    message = error_of(archives, changed(NPZ, old, new))
    assert all(part in message for part in said), message


def test_the_wanted_space_of_a_folder_must_be_declared(folder):
    """A folder does not name its space, so the error must say where to name it."""
    text = """
[benchmark]
data = { source = "folder", path = "reference" }
test = { source = "folder", path = "test" }
wanted = "diagnosis"
spaces = { diagnosis = 1 }
per_class = 1
"""
    message = error_of(folder, text)
    assert "'diagnosis'" in message and "[spaces]" in message


def test_a_benchmark_whose_test_has_no_labels(archives):
    archive(archives / "heldout.npz", [200, 201])
    message = error_of(archives, NPZ)
    assert "benchmark.test" in message and "'diagnosis'" in message


def test_a_benchmark_whose_test_lacks_a_space_of_the_data(folder):
    """The data has departments, but the user's own test images have only garments."""
    archive(folder / "own.npz", [1, 2], size=28, labels=["bag", "coat"])
    text = FASHION.format(seed=1, more='test = { source = "npz", path = "own.npz" }')
    try:
        federation = load(folder, text)
    except FedmtError as error:
        assert "benchmark.test" in str(error)
    else:
        assert federation.tests[0].labels.tolist() == [8, 4]


def test_an_idx_file_is_not_its_own_test(archives):
    """Only a folder with the standard names has a test part."""
    header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (30, 8, 8))
    (archives / "images.idx").write_bytes(header + bytes(30 * 64))
    (archives / "labels.idx").write_bytes(b"\0\0\x08\x01" + (30).to_bytes(4, "big") + bytes(range(3)) * 10)
    text = changed(
        NPZ,
        '{ source = "npz", path = "train.npz" }',
        '{ source = "idx", path = "images.idx", labels = "labels.idx" }',
    )
    assert len(load(archives, text).tests[0]) == 4
    text = changed(text, 'test = { source = "npz", path = "heldout.npz" }\n', "")
    assert "benchmark.test" in error_of(archives, text)


# -- centers on other machines -------------------------------------------------------------------------


def test_a_remote_center_is_known_by_name_and_space_alone(folder):
    """The coordinator reads its own data. A center's data is neither needed nor read."""
    path = folder / "federation.toml"
    text = changed(CONFIG, 'source = "npz"\npath = "goa.npz"', 'source = "remote"')
    path.write_text(text)
    (folder / "berlin.csv").unlink()
    federation, _ = build_federation(load_config(path), at_hand=False)
    centers = {m.name: m for m in federation.roster.members}
    assert list(centers) == ["berlin", "cairo", "delhi", "essen", "faro", "goa"]
    assert federation.centers == () and all(m.size is None for m in federation.elsewhere)
    assert [s.name for s in federation.spaces] == ["diagnosis", "triage", "look"]
    assert centers["delhi"].space is None and centers["goa"].correspondence is None
    assert centers["cairo"].correspondence.matrix.tolist() == [[1, 0.75, 0], [0, 0.25, 1]]
    assert len(federation.reference) == 6


def test_a_remote_center_is_nothing_for_the_local_engine(folder):
    said = error_of(folder, changed(CONFIG, 'source = "npz"\npath = "goa.npz"', 'source = "remote"'))
    assert "center 'goa': its data stay on its own machine" in said and "docs/guides/deployment.md" in said
