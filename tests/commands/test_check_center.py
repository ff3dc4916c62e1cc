"""`fedmt check center.toml`: a center finds its mistakes on its own machine, before a coordinator asks."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedmt.engines.flower.keys import make_keys

FEDERATION = """wanted = "diagnosis"

[spaces]
diagnosis = ["melanoma", "nevus", "keratosis"]
triage = ["malignant", "benign"]

[method]
name = "fedmt"

[reference]
name = "Aachen"
source = "folder"
path = "not-at-this-center"

[[centers]]
name = "Berlin"
source = "remote"
space = "triage"
key = "{key}"
"""

CENTER = """name = "Berlin"
state = "state"
space = "triage"
correspondence = "triage.csv"
key = "keys/Berlin"

[data]
source = "npz"
path = "berlin.npz"

[spaces]
triage = ["malignant", "benign"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fingerprints = make_keys(tmp_path / "keys", ["localhost"], ["Berlin", "Cairo"])
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "berlin.npz", images=images, labels=np.array(["benign", "malignant"] * 3))
    (tmp_path / "triage.csv").write_text(
        ",melanoma,nevus,keratosis\nmalignant,1,0,0\nbenign,0,1,1\n", encoding="utf-8"
    )
    (tmp_path / "federation.toml").write_text(FEDERATION.format(key=fingerprints["Berlin"]))
    (tmp_path / "center.toml").write_text(CENTER)
    return tmp_path


@pytest.fixture
def check(folder: Path, command) -> Callable[..., tuple[int, str]]:
    """Checks the folder's center.toml with the coordinator's config: (exit status, everything printed)."""

    def check(*changes: tuple[str, str], coordinator: tuple[str, str] = ("", "")) -> tuple[int, str]:
        files = [("center.toml", change) for change in changes] + [("federation.toml", coordinator)]
        for name, (old, new) in files:
            text = (folder / name).read_text()
            assert old in text
            (folder / name).write_text(text.replace(old, new, 1) if old else new + text)
        status, out, err = command(
            "check", folder / "center.toml", "--federation", folder / "federation.toml"
        )
        assert "Traceback" not in out + err
        return status, " ".join((out + err).split())

    return check


def test_a_center_that_fits(check, folder):
    before = sorted(folder.rglob("*"))
    status, said = check()
    assert status == 0, said
    assert re.search(r"Berlin .* 6 .* triage \(2\) .* none .* known, partition", said)
    assert "Everything fits. Nothing was trained, and nothing was sent." in said
    assert sorted(folder.rglob("*")) == before  # nothing is written either


def test_images_are_checked_whatever_their_sizes(check, folder):
    """If no size is set, a run uses that of the reference center's images, which are not here."""
    from PIL import Image

    for number, label in enumerate(("benign", "malignant")):
        path = folder / "scans" / label / "0.png"
        path.parent.mkdir(parents=True)
        Image.new("L", (8 + number, 9)).save(path)
    status, said = check(('source = "npz"\npath = "berlin.npz"', 'source = "folder"\npath = "scans"'))
    assert status == 0, said
    (folder / "scans" / "benign" / "1.png").write_bytes(b"broken")
    status, said = check()
    assert status == 2 and "1.png" in said


def test_without_the_coordinators_config_only_the_file_is_checked(folder, command):
    status, out, err = command("check", folder / "center.toml")
    assert status == 0, err
    assert "the file of center 'Berlin' has no mistake. Its data were not read" in " ".join(out.split())
    (folder / "keys" / "Berlin").write_text("not a key")
    status, _, err = command("check", folder / "center.toml")
    assert status == 2 and "this is not a private key" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ('name = "Berlin"', 'name = "Berlinn"'),
            "has no center of this name; it has 'Berlin'. Did you mean 'Berlin'?",
        ),
        (
            ('["malignant", "benign"]', '["benign", "malignant"]'),
            "its classes of 'triage' are 'benign', 'malignant', but the federation's config has 'malignant'",
        ),
        (("keys/Berlin", "keys/Cairo"), "expects SHA256:"),
        (('key = "keys/Berlin"\n', ""), "expects the answers to be signed"),
        (("berlin.npz", "berlyn.npz"), "berlyn.npz"),
        (('key = "', 'device = "gpu"\nkey = "'), "center 'Berlin': device: 'gpu' is not a device"),
        (('space = "triage"\ncorrespondence = "triage.csv"\n', ""), "it has no labels, but"),
        (('[spaces]\ntriage = ["malignant", "benign"]', '[spaces]\ntriage = ["bad"]'), "are 'bad'"),
        (("[data]", 'peers.Cairo = "SHA256:' + "A" * 43 + '"\n[data]'), "has no secure aggregation"),
    ],
)
def test_what_does_not_fit_is_named(check, change, said):
    status, message = check(change)
    assert status == 2 and said in message, message


def test_all_problems_are_named_at_once(check):
    status, message = check(
        ("keys/Berlin", "keys/Cairo"), ('["malignant", "benign"]', '["benign", "malignant"]')
    )
    assert status == 2 and "the order matters" in message and "has the fingerprint SHA256:" in message


def test_what_the_coordinator_asks_for(check):
    status, message = check(coordinator=("[method]", "[privacy]\nepsilon = 8\ndelta = 1e-5\n\n[method]"))
    assert (
        status == 2 and "the federation's config requires [privacy], but its center.toml has none" in message
    )


def test_the_coordinators_correspondence_does_not_travel(check):
    """The coordinator's own check says that M is known, so only the center can see that it will not be."""
    given = (
        "[method]",
        '[correspondences.triage]\nmelanoma = "malignant"\nnevus = "benign"\nkeratosis = "benign"\n[method]',
    )
    status, said = check(coordinator=given)
    assert status == 0 and "Note" not in said, said
    status, said = check(('correspondence = "triage.csv"\n', ""))
    assert status == 0 and "gives none, and the coordinator sends none" in said, said


def test_a_correspondence_that_is_not_the_coordinators_is_noted(check):
    other = 'space = "triage"\ncorrespondence = "other.csv"\n'
    status, said = check(coordinator=('space = "triage"\n', other))
    assert status == 0 and "Note" not in said, said  # its file is not at the center, so nobody can compare
    table = '{ melanoma = "malignant", nevus = "malignant", keratosis = "benign" }'
    status, said = check(coordinator=('"other.csv"', table))
    assert status == 0 and "differs from the one in" in said, said
    status, said = check(coordinator=('name = "fedmt"', 'name = "fedrep"'))
    assert status == 0 and "differs from the one in" not in said, said  # this method uses none


def test_what_a_mean_of_the_estimates_needs(check):
    average = ("[method]", "[method]\naverage = true")
    status, said = check(coordinator=average)
    assert status == 2 and "has method.average, which needs share_correspondence = true" in said, said
    assert check(('key = "', 'share_correspondence = true\nkey = "'))[0] == 0


@pytest.mark.parametrize(
    ("center", "deployment", "said"),
    [
        ("", "max_samples = 5", "it has 6 samples, but"),
        ("threshold = 4", "max_samples = 6", "its threshold is 4, but"),
        (
            '[peers]\nFes = "SHA256:' + "F" * 43 + '"',
            "threshold = 3",
            "its threshold is 4, because with [peers] it counts 5 centers, but that of",
        ),
        ("", "max_samples = 6", ""),
    ],
)
def test_the_terms_of_secure_aggregation(check, folder, center, deployment, said):
    others = {name: "SHA256:" + name[0] * 43 for name in ("Cairo", "Delhi", "Essen")}
    members = "".join(
        f'[[centers]]\nname = "{name}"\nsource = "remote"\nspace = "triage"\nkey = "{key}"\n'
        for name, key in others.items()
    )
    with (folder / "federation.toml").open("a") as file:
        file.write(members + f"[deployment]\nsecure_aggregation = true\n{deployment}\n")
    peers = "".join(f'{name} = "{key}"\n' for name, key in others.items())
    center = center if "[peers]" in center else f"{center}\n[peers]"
    status, message = check(("[data]", f"{center}\n{peers}[data]"))
    assert (status == 2 and said in message) if said else status == 0, message


def test_a_center_without_the_schema_is_told_whom_to_ask(check, folder):
    (folder / "rows.csv").write_text("age,label\n50,benign\n60,malignant\n")
    check(
        ('source = "npz"\npath = "berlin.npz"', 'source = "table"\npath = "rows.csv"'),
        coordinator=('"folder"\npath = "not', '"table"\npath = "not'),
    )
    status, said = check(coordinator=("", 'input = "tables"\ntables.schema = "schema.toml"\n'))
    assert status == 2 and "schema.toml: this schema does not exist" in said
    assert "Ask the coordinator for a copy" in said and "`fedmt schema" not in said, said


def test_code_of_the_coordinator_is_not_imported(check, folder, monkeypatch):
    """The copy of the config is the coordinator's, and may name anything."""
    (folder / "evil.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(str(folder))
    for change in (
        ('name = "fedmt"', 'name = "evil:Method"'),
        ("", 'input = "evil:Input"\n'),
    ):
        status, message = check(coordinator=change)
        assert status == 2 and "does not allow" in message and "imported" not in message, message


def test_options_that_belong_to_the_other_kind_of_file(folder, command):
    status, _, err = command("check", folder / "center.toml", "--set", "training.rounds=1")
    assert status == 2 and "--set is for the coordinator's config" in err
    status, _, err = command("check", folder / "federation.toml", "--federation", folder / "center.toml")
    assert status == 2 and "--federation is only for a center's own center.toml" in err
