"""Which centers take part in a round, and that the others have no effect on it."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmt.aggregation import FedAdam, FedAvg, Scaffold
from fedmt.engines.randomness import absent_centers
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, FedRep, FedTrans, SemiFL, Training

VIEWS = Augmentation(operations=("identity", "rotate"))
TINY = Training(rounds=9, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=10,
                warmup_epochs=1, learning_rate=0.05)  # fmt: skip
BODY = "backbone.features.0.0.weight"


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@given(
    count=st.integers(1, 30),
    share=st.floats(0.01, 1),
    seed=st.integers(0, 2**31),
    number=st.integers(0, 1000),
)
def test_the_share_is_chosen_and_at_least_one(count, share, seed, number):
    names = [f"c{i}" for i in range(count)]
    training = replace(TINY, participation=share)
    absent = absent_centers(names, training, seed, number)
    expected = max(1, int(share * count + 0.5))
    assert len(absent) == count - expected
    assert set(absent) <= set(names) and set(absent.values()) <= {"not chosen"}
    # It depends only on the seed, the round and the set of names, not on their order.
    assert absent_centers(names[::-1], training, seed, number) == absent


def test_rounds_and_seeds_choose_differently_and_everybody_has_a_turn():
    names = [f"c{i}" for i in range(10)]
    training = replace(TINY, participation=0.3)
    chosen = [frozenset(set(names) - set(absent_centers(names, training, 0, r))) for r in range(200)]
    assert len(set(chosen)) > 50
    turns = {n: sum(n in c for c in chosen) for n in names}
    # 60 expected, standard deviation 6.5.
    assert all(30 < t < 90 for t in turns.values()), turns
    other = [frozenset(set(names) - set(absent_centers(names, training, 1, r))) for r in range(200)]
    assert chosen != other


def test_dropouts_are_as_frequent_as_said_and_hit_the_chosen_alone():
    names = [f"c{i}" for i in range(20)]
    training = replace(TINY, participation=0.5, dropouts=0.3)
    reasons = [absent_centers(names, training, 3, r) for r in range(300)]
    counts = [list(a.values()).count("dropped out") for a in reasons]
    assert all(list(a.values()).count("not chosen") == 10 for a in reasons)
    # 10 are chosen, of which 3 drop out. The mean of 300 has a standard deviation of 0.084.
    assert sum(counts) / 300 == pytest.approx(3, abs=0.35)
    none = [absent_centers(names, replace(training, dropouts=0.0), 3, r) for r in range(5)]
    assert all("dropped out" not in a.values() for a in none)
    # The choice does not depend on the dropouts.
    assert [{n for n, why in a.items() if why == "not chosen"} for a in reasons[:5]] == [set(a) for a in none]


def test_without_centers_nobody_is_absent():
    assert absent_centers([], TINY, 0, 1) == {}


@pytest.mark.parametrize(
    ("method", "strategy"),
    [
        (FedMT(TINY, VIEWS, xi=0.05, correspondence="estimated"), FedAvg()),
        (FedRep(TINY, VIEWS), FedAdam()),
        (FedTrans(TINY, VIEWS), Scaffold()),
        (SemiFL(TINY, VIEWS, xi=0.05), FedAvg()),
    ],
    ids=["fedmt", "fedrep", "fedtrans", "semifl"],
)
def test_an_absent_center_leaves_no_trace(make_federation, play, method, strategy):
    """If a center is absent from the start to round 2, its data does not matter: every weight is the same."""
    federation = make_federation(samples=20, half=True)
    training = replace(TINY, participation=0.5)  # two of three
    names = [c.name for c in federation.centers]
    seed, away = next(
        (s, n)
        for s in itertools.count()
        for n in names
        if all(n in absent_centers(names, training, s, r) for r in (0, 1, 2))
    )
    other = replace(
        federation,
        centers=tuple(
            replace(c, values=255 - c.images, labels=c.labels.flip(0)) if c.name == away else c
            for c in federation.centers
        ),
    )
    method = replace(method, training=training)
    states, records = play(federation, method, strategy, rounds=3, seed=seed)
    others, _ = play(other, method, strategy, rounds=3, seed=seed)
    for one, two in zip(states[:3], others[:3], strict=True):
        assert equal(one.weights, two.weights) and equal(one.server, two.server)
        assert away not in one.kept
    for record in records[1:3]:
        assert record["centers"][away] == {"absent": "not chosen"}
        assert sum("losses" in c for c in record["centers"].values()) == 2


def test_absent_centers_keep_what_they_had(make_federation, play):
    federation = make_federation(samples=20, half=True)
    training = replace(TINY, participation=0.34)
    for method in (
        FedRep(training, VIEWS),
        FedMT(training, VIEWS, xi=0.05, correspondence="estimated", estimator="learnable", projection="all"),
    ):
        states, records = play(federation, method, Scaffold(), rounds=5)
        both = 0
        for (before, after), record in zip(itertools.pairwise(states), records[1:], strict=True):
            for center in federation.centers:
                was, now = before.kept.get(center.name, {}), after.kept.get(center.name, {})
                if "absent" in record["centers"][center.name]:
                    assert equal(was, now)
                    both += bool(was)
                else:
                    assert now and not equal(was, now)
        assert both > 2  # absent after having been present, several times


def test_the_mean_is_over_those_who_came(make_federation, make_engine):
    federation = make_federation(samples=20, half=True)
    training = replace(TINY, participation=0.67, reference_epochs=0)
    engine = make_engine(federation, FedMT(training, VIEWS, xi=0.05), FedAvg())
    state, _ = engine.start()
    after, record = engine.round(state)
    came = [c for c in engine.federation.centers if "losses" in record["centers"][c.name]]
    assert len(came) == 2
    sent = [engine.site.center_round(c, state.weights, {}, {}, 1).update[BODY] for c in came]
    expected = state.weights[BODY] + (sent[0] + sent[1]) / 2
    torch.testing.assert_close(after.weights[BODY], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", [FedAvg(), FedAdam(), Scaffold()], ids=lambda s: s.name)
def test_all_drop_out(make_federation, play, strategy):
    """The global model and the server's memory do not change. The reference center still trains."""
    federation = make_federation(samples=20, half=True)
    gone = replace(TINY, dropouts=0.9999)
    still = replace(gone, reference_epochs=0, batch_norm="static-reference")
    (before, after), records = play(federation, FedMT(still, VIEWS, xi=0.05), strategy, rounds=1)
    assert {c["absent"] for c in records[1]["centers"].values()} == {"dropped out"}
    assert equal(before.weights, after.weights) and after.server == {} and after.kept == {}
    (before, after), records = play(federation, FedMT(gone, VIEWS, xi=0.05), strategy, rounds=1)
    assert not torch.equal(before.weights[BODY], after.weights[BODY])
    assert records[1]["reference_loss"] > 0 and "losses" not in records[1]
    # FedRep's reference center is then the only one in the mean.
    (before, after), records = play(federation, FedRep(gone, VIEWS), strategy, rounds=1)
    assert not torch.equal(before.weights[BODY], after.weights[BODY])
    assert records[1]["reference_loss"] > 0


def test_a_round_without_centers_between_two_with_them(make_federation, play):
    """The server's memory survives such a round."""
    federation = make_federation(samples=20, half=True)
    training = replace(TINY, dropouts=0.6)
    names = [c.name for c in federation.centers]
    seed = next(
        s
        for s in itertools.count()
        if [len(absent_centers(names, training, s, r)) == 3 for r in (1, 2, 3)] == [False, True, False]
    )
    states, records = play(federation, FedMT(training, VIEWS, xi=0.05), Scaffold(), rounds=3, seed=seed)
    assert states[1].server and equal(states[1].server, states[2].server)
    assert states[1].kept.keys() == states[2].kept.keys()
    assert not equal(states[2].server, states[3].server)
    assert all(bool(v.isfinite().all()) for v in states[3].weights.values())
    assert "garment" in records[2]["accuracy"]
