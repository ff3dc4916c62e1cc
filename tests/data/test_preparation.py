"""Test images set aside, and classes selected, sampled down and left out: exact, and set only by the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data.preparation import Selection, check_limits, fewer, first_classes, prepare, set_aside
from fedmt.data.specs import BenchmarkSpec

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)
sizes = st.lists(st.integers(0, 30), min_size=2, max_size=7)


def selection(counts: list[int], coarse: list[int] | None = None) -> Selection:
    """A shuffled set with these numbers of images per wanted class. `coarse[k]` is the coarse class of k."""
    fine = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    fine = fine[torch.randperm(len(fine), generator=torch.Generator().manual_seed(0))]
    coarse = [k // 2 for k in range(len(counts))] if coarse is None else coarse
    names = [f"c{j}" for j in range(max(coarse) + 1)]
    return Selection(
        # Not 0, 1, 2 …: an index into the selection must not be mistaken for a position in the set.
        torch.arange(len(fine)) * 3 + 5,
        {"fine": fine, "coarse": torch.tensor(coarse, dtype=torch.int64)[fine]},
        {
            "fine": LabelSpace("fine", [f"f{k}" for k in range(len(counts))]),
            "coarse": LabelSpace("coarse", names),
        },
    )


def spec(**options: Any) -> BenchmarkSpec:
    given = {"data": {"source": "fitzpatrick17k"}, "wanted": "fine", "spaces": {"coarse": 2}, **options}
    if "per_class" not in given:
        given.setdefault("reference_share", 0.1)
    return BenchmarkSpec.model_validate(given)


def named(data: Selection) -> dict[int, tuple[str, str]]:
    """Position in the set -> the names of its labels."""
    fine, coarse = (
        [data.spaces[name].classes[k] for k in data.labels[name].tolist()] for name in ("fine", "coarse")
    )
    return dict(zip(data.positions.tolist(), zip(fine, coarse, strict=True), strict=True))


def counted(labels: Tensor, classes: int) -> list[int]:
    return labels.bincount(minlength=classes).tolist()


@quick
@given(counts=sizes, each=st.integers(1, 12), seed=seeds)
def test_set_aside_is_exact_and_disjoint(counts: list[int], each: int, seed: int) -> None:
    data = selection(counts)
    test, rest = set_aside(data, "fine", each, seed)
    assert counted(test.labels["fine"], len(counts)) == [min(n, each) for n in counts]
    assert sorted(test.positions.tolist() + rest.positions.tolist()) == data.positions.tolist()
    assert {**named(test), **named(rest)} == named(data)
    again, _ = set_aside(data, "fine", each, seed)
    assert torch.equal(test.positions, again.positions)


def test_another_seed_sets_others_aside() -> None:
    data = selection([40, 40])
    one, two = (set_aside(data, "fine", 10, seed)[0].positions.tolist() for seed in (0, 1))
    assert one != two
    # They are drawn at random from the class, and are not its first images.
    assert max(one) > data.positions[60]


@quick
@given(counts=sizes, count=st.integers(1, 60), seed=seeds)
def test_fewer_test_images_are_balanced(counts: list[int], count: int, seed: int) -> None:
    data = selection(counts)
    chosen = fewer(data, "fine", count, seed)
    assert len(chosen) == min(count, len(data)) == len(set(chosen.positions.tolist()))
    assert named(chosen).items() <= named(data).items()
    kept = chosen.counts("fine")
    # Apart from rounding, a class has fewer images than another only if it has no more.
    for k, n in enumerate(counts):
        assert kept[k] == n or kept[k] >= kept.max() - 1


def test_fewer_test_images_follow_from_the_seed() -> None:
    data = selection([30, 30, 30])
    one, again, other = (fewer(data, "fine", 20, seed).positions.tolist() for seed in (0, 0, 1))
    assert one == again != other


@quick
@given(counts=st.lists(st.integers(1, 9), min_size=2, max_size=8), count=st.integers(1, 5), seed=seeds)
def test_a_subset_keeps_names_and_labels_together(counts: list[int], count: int, seed: int) -> None:
    data = selection(counts)
    train, test, notes = prepare(
        data, data.take(torch.arange(0, len(data), 2)), spec(per_class=1, subset=count), seed
    )
    assert notes == ()
    if count >= len(data.spaces["coarse"]):
        assert train.spaces == data.spaces and len(train) == len(data)
        return
    expected = {p: n for p, n in named(data).items() if int(n[1][1:]) < count}
    assert named(train) == expected
    assert named(test) == {p: n for p, n in expected.items() if p in set(test.positions.tolist())}
    assert train.spaces["coarse"].classes == data.spaces["coarse"].classes[:count]
    assert train.spaces["fine"].classes == data.spaces["fine"].classes[: 2 * count]
    assert test.spaces == train.spaces


def test_a_subset_of_spaces_that_cut_across() -> None:
    """The wanted class f1 occurs with c0 and c1. It stays, but only with its images of c0."""
    data = selection([4, 4, 4], coarse=[0, 1, 1])
    coarse = data.labels["coarse"].clone()
    coarse[(data.labels["fine"] == 1).nonzero().flatten()[:1]] = 0
    data = Selection(data.positions, {**data.labels, "coarse": coarse}, data.spaces)
    kept = data.keep(first_classes(data, "fine", 1))
    assert kept.spaces["fine"].classes == ("f0", "f1") and kept.spaces["coarse"].classes == ("c0",)
    assert kept.counts("fine").tolist() == [4, 1]


def test_a_subset_needs_another_space() -> None:
    data = selection([3, 3])
    alone = Selection(data.positions, {"fine": data.labels["fine"]}, {"fine": data.spaces["fine"]})
    with pytest.raises(FedmtError, match=r"benchmark\.subset.*has only 'fine'"):
        first_classes(alone, "fine", 1)


def test_sampling_down() -> None:
    data = selection([30, 30, 5])
    options = spec(at_most={"f0": 8, "f2": 10})
    train, test, notes = prepare(data, data, options, 0)
    assert train.counts("fine").tolist() == [8, 30, 5]
    assert test.counts("fine").tolist() == [30, 30, 5]  # the test is unchanged
    assert named(train).items() <= named(data).items()
    assert notes == ("Sampled down (at_most): f0 8 of 30.",)
    again, other = (prepare(data, data, options, seed)[0].positions.tolist() for seed in (0, 1))
    assert train.positions.tolist() == again != other


def test_classes_to_sample_down_must_exist() -> None:
    with pytest.raises(FedmtError, match=r"benchmark\.at_most: 'inflamatory' .*Did you mean 'inflammatory'"):
        check_limits({"inflamatory": 5}, LabelSpace("nine", ["inflammatory", "benign"]))


@quick
@given(
    counts=sizes, share=st.floats(0.05, 0.6), centers=st.integers(1, 5), each=st.integers(0, 6), seed=seeds
)
def test_classes_with_too_few_images_are_left_out(
    counts: list[int], share: float, centers: int, each: int, seed: int
) -> None:
    data = selection(counts)
    test, train = set_aside(data, "fine", each, seed) if each else (data, data)
    left = np.array([max(0, n - each) for n in counts])
    stays = [n - max(1, int(n * share + 0.5)) >= centers for n in left.tolist()]
    more = {"test_per_class": each} if each else {}
    options = spec(reference_share=share, spaces={"coarse": centers}, **more)
    if sum(stays) < 2:
        with pytest.raises(FedmtError, match=r"have enough samples.*Too few: f"):
            prepare(train, test, options, seed)
        return
    kept, kept_test, notes = prepare(train, test, options, seed)
    names = {f"f{k}" for k, inside in enumerate(stays) if inside}
    assert set(kept.spaces["fine"]) == names and bool(notes) == (not all(stays))
    assert named(kept) == {p: n for p, n in named(train).items() if n[0] in names}
    assert named(kept_test) == {p: n for p, n in named(test).items() if n[0] in names}
    for k, inside in enumerate(stays):
        assert inside or f"f{k} ({counts[k]})" in notes[0]
    if notes:
        # The number that a class needs, according to the note, is the one that decided.
        least = int(notes[0].split("a class needs ")[1].split(" ")[0])
        assert all((n >= least) or not inside for n, inside in zip(counts, stays, strict=True))
        # A broad class stays as long as one of its classes stays.
        broad = {n[1] for n in named(kept).values()}
        assert set(kept.spaces["coarse"]) == broad
        assert all(c in notes[-1] for c in set(data.spaces["coarse"]) - broad)


def test_what_is_left_out_is_said() -> None:
    data = selection([40, 40, 2, 0])
    test, train = set_aside(data, "fine", 5, 0)
    _, _, notes = prepare(train, test, spec(test_per_class=5), 0)
    assert notes == (
        "Left out of 'fine' because of too few samples: f2 (2), f3 (0); a class needs 8 samples, 5 of them "
        "for the "
        "test, so that the reference center and each of 2 centers have one.",
        "Left out of 'coarse', because no wanted class is left: c1.",
    )


def test_the_test_images_do_not_depend_on_the_split() -> None:
    """Accuracies at 5, 10 and 20 % are compared on the same images."""
    data = selection([40, 9, 40, 20])
    found = []
    for options in ({"reference_share": 0.05}, {"reference_share": 0.5}, {"per_class": 3, "subset": 9}):
        test, train = set_aside(data, "fine", 5, 0)
        found.append(named(prepare(train, test, spec(test_per_class=5, **options), 0)[1]))
    assert found[0] == found[1] and len(found[0]) == 20
    # If one split leaves out a class, the images of the other classes stay the same.
    assert found[2] == {p: n for p, n in found[0].items() if n[0] != "f1"}


def test_a_class_too_small_stays_a_mistake_where_the_reference_has_a_number() -> None:
    data = selection([40, 40, 2, 0])
    train, _, notes = prepare(data, data, spec(per_class=3), 0)
    assert notes == () and train.spaces == data.spaces  # the split then rejects it


def test_at_most_finds_a_class_however_its_accents_are_written() -> None:
    assert spec(at_most={"na\u0308vus": 8}).at_most == {"n\u00e4vus": 8}
