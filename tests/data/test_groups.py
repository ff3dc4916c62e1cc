"""No split ever separates a group, and numbers are as close to the request as whole groups allow."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data import Center, Federation, ImageOptions, read_manifest
from fedmt.data.group_splits import group_split
from fedmt.data.groups import class_counts, deal, group_numbers, in_order, pick
from fedmt.data.holding import hold_out
from fedmt.data.overlap import overlaps
from fedmt.data.preparation import Selection, prepare, set_aside
from fedmt.data.specs import BenchmarkSpec, CalibrationSpec

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32)


@st.composite
def grouped(draw: Any, pure: bool = False) -> tuple[Tensor, Tensor, int]:
    """(truth [N], groups [N], number of classes): every class in at least three groups, in random order."""
    classes = draw(st.integers(2, 3))
    rows = [
        [size if k == own else 0 for k in range(classes)]
        for own in range(classes)
        for size in draw(st.lists(st.integers(1, 9), min_size=3, max_size=6))
    ]
    if not pure:
        several = st.lists(st.integers(0, 4), min_size=classes, max_size=classes).filter(any)
        rows += draw(st.lists(several, max_size=4))
    samples = [(k, g) for g, row in enumerate(rows) for k, n in enumerate(row) for _ in range(n)]
    truth, groups = torch.tensor(draw(st.permutations(samples))).T
    return truth, groups * 977 - 12345, classes


def table(truth: Tensor, groups: Tensor, classes: int) -> Any:
    return class_counts(in_order(groups), truth.numpy(), classes)


def whole(groups: Tensor, *places: Tensor) -> bool:
    """Whether no group is in two places."""
    found = [set(groups[place].tolist()) for place in places]
    return all(not one & two for one, two in itertools.combinations(found, 2))


def nearest(sizes: list[int], target: int) -> int:
    """The largest sum of some of `sizes` that is at most `target`, by trying all."""
    return max(
        s for n in range(len(sizes) + 1) for c in itertools.combinations(sizes, n) if (s := sum(c)) <= target
    )


def test_numbers_are_equal_where_the_values_are() -> None:
    one, two = group_numbers(["p1", "p2", "p1", "ü"]), group_numbers(["p2", "P1"])
    assert one[0] == one[2] and one[1] == two[0]
    assert len({*one.tolist(), *two.tolist()}) == 4
    assert in_order(one).tolist() == [0, 1, 0, 2]


@given(grouped(pure=True), st.lists(st.integers(0, 30), min_size=3, max_size=3), seeds)
@quick
def test_groups_of_one_class_come_as_near_as_any_choice(data: Any, targets: list[int], seed: int) -> None:
    counts = table(*data)
    asked = np.array(targets[: data[2]])
    found = counts[pick(counts, asked, np.random.default_rng(seed), at_least_one=False)].sum(0)
    assert found.tolist() == [
        nearest([n for n in own if n], t) for own, t in zip(counts.T.tolist(), asked, strict=True)
    ]


@given(grouped(), st.integers(0, 30), seeds)
@quick
def test_groups_of_several_classes_are_taken_as_long_as_they_fit(data: Any, target: int, seed: int) -> None:
    counts = table(*data)
    asked = np.full(data[2], target)
    chosen = pick(counts, asked, np.random.default_rng(seed), at_least_one=False)
    held = counts[chosen].sum(0)
    assert (held <= asked).all()
    several = (counts > 0).sum(1) > 1
    assert not any((held + counts[g] <= asked).all() for g in np.flatnonzero(several & ~chosen))


@given(grouped(), st.integers(1, 30), st.integers(1, 2), seeds)
@quick
def test_every_class_is_there_and_some_groups_are_spared(
    data: Any, target: int, spared: int, seed: int
) -> None:
    counts = table(*data)
    chosen = pick(counts, np.full(data[2], target), np.random.default_rng(seed), spared=spared)
    assert (counts[chosen].sum(0) > 0).all()
    if ((counts > 0).sum(1) == 1).all():
        assert ((counts[~chosen] > 0).sum(0) >= spared).all()


@given(grouped(pure=True), st.integers(1, 4), seeds)
@quick
def test_shared_out_evenly(data: Any, places: int, seed: int) -> None:
    counts = table(*data)
    goes = deal(counts, None, places, np.random.default_rng(seed))
    held = np.stack([counts[goes == c].sum(0) for c in range(places)])
    assert (goes >= 0).all() and (held.max(0) - held.min(0) <= counts.max(0)).all()
    assert (np.bincount(goes, minlength=places) > 0).all() or len(counts) < places


SPLITS = {
    "per_class": {"per_class": 5},
    "share": {"reference_share": 0.3},
    "samples": {"per_class": 5, "samples": 24},
    "non-iid": {"per_class": 5, "samples": 40, "split": "non-iid", "gamma": 0.5},
}


@pytest.mark.parametrize("options", SPLITS.values(), ids=SPLITS)
@given(data=grouped(), centers=st.integers(1, 3), seed=seeds)
@quick
def test_no_split_separates_a_group(options: dict[str, Any], data: Any, centers: int, seed: int) -> None:
    truth, groups, classes = data
    sizes = truth.bincount(minlength=classes).numpy()
    share = options.get("reference_share")
    asked = (
        np.maximum(1, np.rint(sizes * share)).astype(int) if share else np.full(classes, options["per_class"])
    )
    arguments = (
        truth,
        groups,
        "abc"[:classes],
        asked,
        centers,
        options.get("samples"),
        options.get("gamma"),
        seed,
    )
    try:
        split = group_split(*arguments)
    except FedmtError as error:
        found = re.search(r"centers would have no samples: (\d+) groups? (?:is|are) left", str(error))
        assert found is not None
        assert "samples" in options or int(found[1]) < centers
        return
    places = [split.reference, *split.centers]
    assert whole(groups, *places)
    everything = torch.cat(places)
    assert len(everything.unique()) == len(everything)
    if "samples" in options:
        assert all(len(center) <= options["samples"] for center in split.centers)
    else:
        assert len(everything) == len(truth)
    assert set(truth[split.reference].tolist()) == set(range(classes))
    again = group_split(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(places, [again.reference, *again.centers], strict=True))


@given(grouped(), st.integers(1, 20), seeds)
@quick
def test_the_test_separates_no_group(data: Any, each: int, seed: int) -> None:
    truth, groups, classes = data
    every = Selection(
        torch.arange(len(truth)), {"f": truth}, {"f": LabelSpace("f", list("abc"[:classes]))}, groups
    )
    test, rest = set_aside(every, "f", each, seed)
    assert whole(groups, test.positions, rest.positions) and len(test) + len(rest) == len(truth)
    assert (test.counts("f") > 0).all()
    for part in (test, rest):
        assert torch.equal(part.groups, groups[part.positions])
        assert torch.equal(part.positions, part.positions.sort().values)


@given(grouped(), st.floats(0.05, 0.9), seeds)
@quick
def test_what_is_held_out_separates_no_group(data: Any, share: float, seed: int) -> None:
    truth, groups, classes = data
    space = LabelSpace("f", list("abc"[:classes]))
    values = torch.arange(len(truth), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    reference = Center("r", values, space, truth, groups=groups)
    federation = Federation(space, reference, (Center("c", values, space, truth),))
    found, note = hold_out(federation, CalibrationSpec(share=share, minimum=2), seed)
    if found.held_out is None:
        assert "None are held out" in note
        return
    aside, kept = found.held_out, found.reference
    assert aside.groups is not None and kept.groups is not None and "in whole groups" in note
    assert not set(aside.groups.tolist()) & set(kept.groups.tolist())
    assert len(aside) + len(kept) == len(truth)
    assert torch.equal(aside.groups, groups[aside.values[:, 0, 0, 0].long()])
    sizes, held = truth.bincount(minlength=classes), aside.labels.bincount(minlength=classes)
    assert (held <= (share * sizes).long()).all()


def test_classes_with_too_few_groups_are_left_out_with_their_numbers() -> None:
    truth = torch.tensor([0] * 6 + [1] * 6 + [2] * 6)
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7, 7])
    every = Selection(torch.arange(18), {"f": truth}, {"f": LabelSpace("f", list("abc"))}, groups)
    spec = BenchmarkSpec(data={"source": "x"}, wanted="f", spaces={}, per_class=2, test_per_class=2)
    test, train = set_aside(every, "f", 2, 0)
    train, test, (note,) = prepare(train, test, spec, 0)
    assert note == (
        "Left out of 'f' because of too few groups: c (2); a class needs 3 groups, for the test, the "
        "reference "
        "center and the other centers."
    )
    assert train.spaces["f"].classes == test.spaces["f"].classes == ("a", "b")


def test_a_class_of_one_group_is_refused() -> None:
    with pytest.raises(FedmtError, match="Class 'b' has samples of 1 group, but the reference center"):
        group_split(
            torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2, 3, 3]), "ab", np.array([1, 1]), 1, None, None, 0
        )


# -- manifests ------------------------------------------------------------------------------------


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """90 images of 30 patients, of whom 5 have two classes. a, b and c are x, and d is y."""
    rng = np.random.default_rng(0)
    lines = ["image,label,patient"]
    for i in range(90):
        Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        patient = i // 3
        label = "abcd"[(patient + (i % 3 == 0 and patient % 6 == 0)) % 4]
        lines.append(f"{i}.png,{label},Mustermann {patient}")
    (tmp_path / "cases.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


CONFIG = """
[spaces]
fine = ["a", "b", "c", "d"]
coarse = ["x", "y"]
[correspondences.coarse]
a = "x"
b = "x"
c = "x"
d = "y"
[benchmark]
data = {{ source = "manifest", path = "cases.csv"{group} }}
wanted = "fine"
spaces = {{ coarse = 3 }}
per_class = 5
test_per_class = 4
[calibration]
share = 0.5
minimum = 2
"""


def test_a_benchmark_of_a_manifest_by_patient(cases: Path) -> None:
    config = cases / "c.toml"
    config.write_text(CONFIG.format(group=', group_column = "patient"'))
    federation, notes = build_federation(load_config(config))
    assert federation.held_out is not None
    places = [federation.reference, federation.held_out, *federation.centers, federation.tests[0]]
    seen = [set(p.groups.tolist()) for p in places if p.groups is not None]
    assert len(seen) == 6 and all(not a & b for a, b in itertools.combinations(seen, 2))
    assert sum(map(len, seen)) == 30 and sum(map(len, places)) == 90
    assert overlaps(federation) == []
    assert any(
        n.startswith("Groups are kept whole, so the test has other numbers than requested: ") for n in notes
    )
    assert not any("Mustermann" in note for note in notes)


def test_without_a_group_column_nothing_is_grouped(cases: Path) -> None:
    config = cases / "c.toml"
    config.write_text(CONFIG.format(group=""))
    federation, notes = build_federation(load_config(config))
    assert federation.reference.groups is None and not any("roups" in note for note in notes)
    assert [len(c) for c in federation.tests][:1] == [16]


def test_groups_of_a_manifest(cases: Path) -> None:
    labeled = read_manifest(cases / "cases.csv", ImageOptions(), group_column="patient")
    plain = read_manifest(cases / "cases.csv", ImageOptions(), label_column=None, group_column="patient")
    assert labeled.groups is not None and plain.groups is not None
    assert in_order(labeled.groups).tolist() == [i // 3 for i in range(90)]
    assert torch.equal(labeled.groups, plain.groups)
    (cases / "gap.csv").write_text("image,label,patient\n0.png,a,1\n1.png,a,\n")
    with pytest.raises(FedmtError, match=r"gap.csv, line 3: the column 'patient' is empty"):
        read_manifest(cases / "gap.csv", ImageOptions(), group_column="patient")
    with pytest.raises(FedmtError, match=r"no column 'patent'.*Did you mean 'patient'"):
        read_manifest(cases / "cases.csv", ImageOptions(), group_column="patent")


def test_a_group_column_that_is_not_read_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        "[benchmark]\ndata = {source = 'fashion_mnist', group_column = 'patient'}\nwanted = 'garment'\n"
        "spaces = {department = 1}\nper_class = 1\n"
    )
    with pytest.raises(FedmtError, match="group_column: source 'fashion_mnist' does not support groups"):
        build_federation(load_config(config))


def test_shared_groups_are_told(make_federation: Any) -> None:
    federation = make_federation()
    centers = [federation.reference, *federation.centers]

    def named(center: Center, first: int) -> Center:
        values = [f"Mustermann {first + i // 4}" for i in range(len(center))]
        return Center(
            center.name, center.values, center.space, center.labels, center.correspondence,
            groups=group_numbers(values),
        )  # fmt: skip

    one, *others = [named(c, 100 * i) for i, c in enumerate(centers)]
    others[1] = named(others[1], 105)  # groups 105 to 109 are also in others[0]
    tests = (named(federation.tests[0], 303),)
    found = overlaps(Federation(federation.wanted, one, tuple(others), tests))
    assert len(found) == 2
    assert found[0].startswith(
        "test: some of its 125 groups are also used for training, which inflates its accuracy: "
        "7 at 'center-3'."
    )
    assert found[1] == "Groups of the same name at two centers: 5 of 'center-1' and 'center-2'."
    assert overlaps(Federation(federation.wanted, one, tuple(others[:1]), tests)) == []
