"""Secure aggregation: the sum is exact, whichever centers vanish and whenever, or there is no sum."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.privacy.masking.agreement import Announcement, Refused
from fedmt.privacy.masking.center import Ledger, Masked, MaskingCenter
from fedmt.privacy.masking.coordinator import Lost, MaskedSum
from fedmt.privacy.masking.fixed_point import Entry, Layout, NotASum
from fedmt.privacy.masking.masks import Context, add_mask
from fedmt.privacy.masking.statements import MaskRequest, Revealed, RevealRequest
from fedmt.privacy.masking.terms import usual_threshold

RUN = "0123456789abcdef"
NAMES = ("Berlin", "Genoa", "Lyon", "Porto", "Turin", "Zurich")


@cache
def registered(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def verify(name: str, statement: bytes, signature: bytes) -> bool:
    """Verifies with the roster of every center, which contains only NAMES."""
    try:
        registered(name).public_key().verify(signature, statement)
    except InvalidSignature:
        return False
    return name in NAMES


def announcement(name: str, center: MaskingCenter) -> Announcement:
    return center.announce(registered(name).sign)


class Federation:
    """The centers of a run, each with its own disk for what it remembers."""

    def __init__(self, names: Collection[str] = NAMES, least: int = 2, run: str = RUN) -> None:
        self.disk: dict[str, bytes] = {}
        self.keys = {name: X25519PrivateKey.generate() for name in names}
        self.least, self.run = least, run

    def center(self, name: str) -> MaskingCenter:
        """A center as in a new process, with only its key and its ledger left."""

        def save(data: bytes) -> None:
            self.disk[name] = data

        ledger = Ledger.load(self.disk[name], save) if name in self.disk else Ledger(save)
        return MaskingCenter(name, self.run, self.keys[name], verify, ledger, self.least)

    def announcements(self) -> dict[str, Announcement]:
        return {name: announcement(name, self.center(name)) for name in self.keys}


def context(round: int = 1, session: str = "first", run: str = RUN) -> Context:
    return Context(run, round, "update", session)


def layout_of(length: int, centers: int = 6) -> Layout:
    return Layout((Entry("w", (length,), 3),), centers)


def summed(
    federation: Federation,
    vectors: dict[str, np.ndarray],
    layout: Layout,
    threshold: int,
    before: Collection[str] = (),
    between: Collection[str] = (),
    where: Context | None = None,
) -> MaskedSum:
    """One round. before: centers that vanish before masking. between: those between the two messages."""
    total = MaskedSum(where or context(), threshold, federation.announcements(), layout)
    for name in vectors:
        if name not in before:
            total.add(name, federation.center(name).mask(total.request(), vectors[name].copy()))
    for name, request in total.reveal_requests().items():
        if name not in between:
            total.take(name, federation.center(name).reveal(request))
    return total


# -- the sum --------------------------------------------------------------------------------------

PATTERNS = list(itertools.product(("stays", "before", "between"), repeat=len(NAMES)))


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.sampled_from(PATTERNS),
    threshold=st.integers(4, 6),
    values=st.lists(st.floats(-8, 8, width=32), min_size=12, max_size=12),
)
def test_the_masked_sum_is_the_plain_one_or_there_is_none(
    pattern: tuple[str, ...], threshold: int, values: list[float]
) -> None:
    layout = layout_of(2)
    vectors = {
        name: layout.encode({"w": np.float32(values[2 * i : 2 * i + 2])})[0] for i, name in enumerate(NAMES)
    }
    before = [n for n, p in zip(NAMES, pattern, strict=True) if p == "before"]
    between = [n for n, p in zip(NAMES, pattern, strict=True) if p == "between"]
    arrived = [n for n in NAMES if n not in before]
    answered = len(arrived) - len(between)
    possible = answered >= threshold and not (before and between)
    if not possible:
        with pytest.raises(Lost):
            summed(Federation(), vectors, layout, threshold, before, between).mean()
        return
    got = summed(Federation(), vectors, layout, threshold, before, between).mean()
    plain = np.sum([vectors[n] for n in arrived], axis=0, dtype=np.uint32)
    expected = layout.decode(plain, len(arrived))
    assert np.array_equal(got.means["w"], expected.means["w"])
    assert got.counts == {"w": len(arrived)}


def test_a_seed_that_both_holders_took_along_is_detected() -> None:
    """One vanishes before masking and another between the messages, so the seed between them is lost."""
    layout = layout_of(3)
    vectors = {n: layout.encode({"w": np.ones(3, np.float32)})[0] for n in NAMES}
    total = summed(Federation(), vectors, layout, 4, before=["Lyon"], between=["Genoa"])
    with pytest.raises(Lost, match=r"the seed between two centers is missing.*Genoa and Lyon"):
        total.mean()
    # Without the check, the sum would be wrong, because it would still contain the mask of that pair.
    for seed in total._self_seeds().values():
        add_mask(total._total, seed, -1)
    for name, revealed in total._revealed.items():
        add_mask(total._total, revealed.seeds["Lyon"], -1 if name < "Lyon" else 1)
    plain = np.sum([v for n, v in vectors.items() if n != "Lyon"], axis=0, dtype=np.uint32)
    assert not np.array_equal(total._total, plain)
    with pytest.raises(NotASum):  # the counts in it would reveal this too
        layout.decode(total._total, 5)


def test_a_wrong_seed_gives_no_sum() -> None:
    """A center that lies about its seed with a vanished one spoils the sum, but is detected."""
    layout = layout_of(5)
    federation = Federation()
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    for name in NAMES[:5]:
        total.add(name, federation.center(name).mask(total.request(), layout.encode(None)[0]))
    for name, request in total.reveal_requests().items():
        answer = Revealed.from_bytes(federation.center(name).reveal(request))
        seeds = {k: bytes(16) for k in answer.seeds} if name == "Genoa" else answer.seeds
        total.take(name, Revealed(answer.shares, seeds).to_bytes())
    with pytest.raises(Lost, match="wrong seed"):
        total.mean()


def test_a_wrong_share_is_named_and_the_sum_is_right() -> None:
    layout = layout_of(5)
    federation = Federation()
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    update = {"w": np.float32([1, 2, 3, 4, 5])}
    for name in NAMES:
        total.add(name, federation.center(name).mask(total.request(), layout.encode(update)[0]))
    for name, request in total.reveal_requests().items():
        answer = Revealed.from_bytes(federation.center(name).reveal(request))
        shares = {k: bytes(16) for k in answer.shares} if name == "Berlin" else answer.shares
        total.take(name, Revealed(shares, answer.seeds).to_bytes())
    assert np.array_equal(total.mean().means["w"], update["w"])
    assert list(total.problems) == ["Berlin"]


def test_masks_differ_between_centers_rounds_sessions_and_runs() -> None:
    layout = layout_of(1000)
    seen = []
    for run in (RUN, "fedcba9876543210"):
        federation = Federation(run=run)
        for where in (context(1, run=run), context(2, run=run), context(2, "second", run=run)):
            request = MaskRequest(where, 4, federation.announcements()).to_bytes()
            seen += [federation.center(n).mask(request, layout.encode(None)[0]).vector for n in NAMES]
    assert len({v.tobytes() for v in seen}) == len(seen) == 36
    key, seeds = federation.keys["Lyon"].public_key(), set()
    for where in (context(r, s) for r in (1, 2) for s in ("first", "second")):
        asked = MaskRequest(where, 4, federation.announcements())
        seeds.add(federation.center("Berlin")._pairwise(asked, "Lyon", key))
    assert len(seeds) == 4


def test_a_masked_update_looks_like_noise() -> None:
    """Given two very different updates, mean, bits and correlation do not show which one was masked."""
    size = 20_000
    layout = layout_of(size)
    plain = np.linspace(-1, 1, size, dtype=np.float32)
    federation = Federation()
    request = MaskRequest(context(), 4, federation.announcements()).to_bytes()

    def odd(vector: np.ndarray) -> list[float]:
        """Deviations from uniform noise, in standard deviations: mean, share of ones per bit, correlation."""
        values = vector[:size] / 2**32
        mean = (values.mean() - 0.5) * np.sqrt(12 * size)
        ones = np.unpackbits(vector[:size].view(np.uint8)).mean() - 0.5
        return [mean, ones * 2 * np.sqrt(32 * size), np.corrcoef(values, plain)[0, 1] * np.sqrt(size)]

    encoded = layout.encode({"w": plain})[0]
    assert max(np.abs(odd(encoded))) > 50  # what the tests would see without the masks
    assert max(np.abs(odd(federation.center("Berlin").mask(request, encoded).vector))) < 5


# -- what a center refuses ------------------------------------------------------------------------


@pytest.fixture
def begun() -> tuple[Federation, MaskedSum]:
    """A sum for which every center has sent a masked vector."""
    federation, layout = Federation(), layout_of(4)
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    for i, name in enumerate(NAMES):
        vector = layout.encode({"w": np.full(4, i, np.float32)})[0]
        total.add(name, federation.center(name).mask(total.request(), vector))
    return federation, total


def asked(
    total: MaskedSum, name: str, vanished: Collection[str] = (), drop: Collection[str] = ()
) -> RevealRequest:
    survived = {n: total._share(n, name)[1] for n in total.survived if n not in drop}
    return RevealRequest(total.context, survived, tuple(vanished))


def test_both_seeds_would_show_an_update() -> None:
    """The attack that the rule prevents: with a center's self seed and pairwise seeds, nothing is hidden."""
    federation, layout, victim = Federation(), layout_of(4), "Lyon"
    update = {"w": np.float32([1, -2, 3, 0.5])}
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    sent = {n: federation.center(n).mask(total.request(), layout.encode(update)[0]) for n in NAMES}
    for name, masked in sent.items():
        total.add(name, masked)
    stolen = sent[victim].vector.copy()
    for name in (n for n in NAMES if n != victim):
        before = dict(federation.disk)
        total.take(name, federation.center(name).reveal(asked(total, name).to_bytes()))
        federation.disk = before  # a center that forgets that it revealed has no defense
        request = asked(total, name, vanished=[victim], drop=[victim])
        pairwise = Revealed.from_bytes(federation.center(name).reveal(request.to_bytes())).seeds[victim]
        add_mask(stolen, pairwise, -1 if victim < name else 1)
    add_mask(stolen, total._self_seeds()[victim], -1)
    assert np.array_equal(layout.decode(stolen, 1).means["w"], update["w"])


def test_a_center_does_not_reveal_both_seeds_of_a_peer(begun: tuple[Federation, MaskedSum]) -> None:
    federation, total = begun
    request = asked(total, "Berlin", vanished=["Lyon"])
    with pytest.raises(Refused, match="both seeds of 'Lyon'"):
        federation.center("Berlin").reveal(request.to_bytes())


def test_a_center_reveals_once(begun: tuple[Federation, MaskedSum]) -> None:
    federation, total = begun
    federation.center("Berlin").reveal(asked(total, "Berlin").to_bytes())
    other = asked(total, "Berlin", vanished=["Lyon"], drop=["Lyon"])
    for request in (asked(total, "Berlin"), other):
        with pytest.raises(Refused, match="already revealed its seeds"):
            federation.center("Berlin").reveal(request.to_bytes())


def test_a_center_reveals_nothing_of_a_sum_it_is_not_in(begun: tuple[Federation, MaskedSum]) -> None:
    federation, total = begun
    request = asked(total, "Berlin", vanished=["Berlin"], drop=["Berlin"])
    with pytest.raises(Refused, match="its own vector"):
        federation.center("Berlin").reveal(request.to_bytes())


def test_a_center_reveals_nothing_with_too_few_survivors(begun: tuple[Federation, MaskedSum]) -> None:
    federation, total = begun
    request = asked(total, "Berlin", vanished=NAMES[2:], drop=NAMES[2:])
    with pytest.raises(Refused, match="2 centers survived, but the threshold is 4"):
        federation.center("Berlin").reveal(request.to_bytes())


def test_nobody_is_left_unmentioned_and_nobody_is_added(begun: tuple[Federation, MaskedSum]) -> None:
    federation, total = begun
    for request in (asked(total, "Berlin", drop=["Lyon"]), asked(total, "Berlin", vanished=["Oslo"])):
        with pytest.raises(Refused, match="not those it masked with"):
            federation.center("Berlin").reveal(request.to_bytes())


def test_an_invented_peer_is_refused() -> None:
    """Masks shared with the coordinator hide nothing from it, so the coordinator must not invent peers."""
    federation = Federation()
    mallory = X25519PrivateKey.generate()
    real = federation.announcements()
    genuine = real["Lyon"]
    forged = {
        "its key under another center's name": {
            **real,
            "Lyon": Announcement(mallory.public_key().public_bytes_raw(), genuine.signature),
        },
        "a key of another run": {
            **real,
            "Lyon": Announcement.make("ffff", "Lyon", mallory.public_key(), registered("Lyon").sign),
        },
        "a peer whom no roster knows": {
            **real,
            "Oslo": Announcement.make(RUN, "Oslo", mallory.public_key(), registered("Oslo").sign),
        },
    }
    for what, participants in forged.items():
        request = MaskRequest(context(session=what), 5, participants).to_bytes()
        with pytest.raises(Refused, match="was not signed by it"):
            federation.center("Berlin").mask(request, layout_of(4).encode(None)[0])
    request = MaskRequest(context(), 4, real).to_bytes()
    federation.center("Berlin").mask(request, layout_of(4).encode(None)[0])


def test_an_invented_peer_would_see_the_update() -> None:
    """The attack: if a center trusted any key, a coordinator could play all of its peers."""
    layout, update = layout_of(4), {"w": np.float32([1, -2, 3, 0.5])}
    mallory = {n: X25519PrivateKey.generate() for n in NAMES[1:]}
    federation = Federation(NAMES[:1])
    federation.keys |= mallory
    believer = MaskingCenter(
        "Berlin", RUN, federation.keys["Berlin"], lambda *_: True, Ledger(lambda data: None), 2
    )
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    total.add("Berlin", believer.mask(total.request(), layout.encode(update)[0]))
    for name in mallory:
        total.add(name, federation.center(name).mask(total.request(), layout.encode(None)[0]))
    for name, request in total.reveal_requests().items():
        total.take(name, (believer if name == "Berlin" else federation.center(name)).reveal(request))
    assert np.array_equal(total.mean().means["w"], update["w"])


def test_a_round_is_not_replayed(begun: tuple[Federation, MaskedSum]) -> None:
    """The same masks on two updates would reveal their difference."""
    federation, total = begun
    with pytest.raises(Refused, match="masked an update for this session"):
        federation.center("Berlin").mask(total.request(), total.layout.encode(None)[0])


def test_a_round_that_begins_again_is_revealed_for_the_same_centers_only(
    begun: tuple[Federation, MaskedSum],
) -> None:
    """The difference between two sums of one round would be the update of the center that is in only one."""
    federation, total = begun
    for name in NAMES:
        federation.center(name).reveal(asked(total, name).to_bytes())
    vectors = {n: total.layout.encode({"w": np.ones(4, np.float32)})[0] for n in NAMES}
    with pytest.raises(Refused, match="would reveal their updates"):
        summed(federation, vectors, total.layout, 4, before=["Lyon"], where=context(session="second"))
    again = summed(federation, vectors, total.layout, 4, where=context(session="third"))
    assert again.mean().counts == {"w": 6}
    summed(federation, vectors, total.layout, 4, before=["Lyon"], where=context(round=2))


def test_a_request_to_reveal_is_for_the_sum_that_was_masked(begun: tuple[Federation, MaskedSum]) -> None:
    """Otherwise, another name would evade the rule that a round is revealed for one list of centers."""
    federation, total = begun
    request = asked(total, "Berlin")
    for other in (context(round=2), Context(RUN, 1, "statistics", "first")):
        with pytest.raises(Refused, match="for a different sum"):
            federation.center("Berlin").reveal(replace(request, context=other).to_bytes())


def test_too_few_shares_give_no_sum() -> None:
    layout = layout_of(3)
    vectors = {n: layout.encode(None)[0] for n in NAMES}
    total = summed(Federation(), vectors, layout, 4, between=NAMES[:3])
    with pytest.raises(Lost, match="3 shares of the seed of 'Berlin' came back, but the threshold is 4"):
        total.mean()


def test_a_center_agrees_to_no_smaller_sum_than_its_own_file_says() -> None:
    federation = Federation(least=5)
    request = MaskRequest(context(), 4, federation.announcements()).to_bytes()
    with pytest.raises(Refused, match="it requires 5 or more"):
        federation.center("Berlin").mask(request, layout_of(4).encode(None)[0])


@pytest.mark.parametrize("threshold", [3, 4])
def test_different_words_to_different_centers(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: the coordinator tells each center something different about which centers survived.

    Centers before the victim are told that it survived, and give shares of its self seed. Centers after it
    are told that it vanished, and give the seeds that they share with it. The victim is told that the centers
    before it vanished, and gives the other seeds. With 2 t < n + 2 this is enough, and no center breaks a
    rule.
    """
    monkeypatch.setattr(f"{MaskingCenter.__module__}.least_threshold", lambda centers: 2)
    federation, layout, victim = Federation(), layout_of(4), "Lyon"
    before, after = NAMES[:2], NAMES[3:]
    update = {"w": np.float32([1, -2, 3, 0.5])}
    total = MaskedSum(context(), threshold, federation.announcements(), layout)
    sent = {n: federation.center(n).mask(total.request(), layout.encode(update)[0]) for n in NAMES}
    for name, masked in sent.items():
        total.add(name, masked)
    stolen = sent[victim].vector.copy()
    words = {name: asked(total, name) for name in before}
    words |= {name: asked(total, name, vanished=[victim], drop=[victim]) for name in after}
    words[victim] = asked(total, victim, vanished=before, drop=before)
    shares = []
    try:
        for number, name in enumerate(NAMES, 1):
            answer = Revealed.from_bytes(federation.center(name).reveal(words[name].to_bytes()))
            shares += [(number, answer.shares[victim])] if victim in answer.shares else []
            for peer, seed in answer.seeds.items():
                other = peer if name == victim else name
                add_mask(stolen, seed, -1 if victim < other else 1)
    except Refused as error:
        assert threshold == 4 and "survived, but the threshold is 4" in str(error)
    if threshold == 4:
        assert len(shares) < threshold
        return
    add_mask(stolen, Shamir.combine(shares[:threshold], ssss=False), -1)
    assert np.array_equal(layout.decode(stolen, 1).means["w"], update["w"])


def test_two_sums_of_one_round_cannot_both_reach_the_threshold() -> None:
    federation = Federation()
    request = MaskRequest(context(), 2, federation.announcements()).to_bytes()
    with pytest.raises(Refused, match="a threshold of 2 does not protect one of 6 centers"):
        federation.center("Berlin").mask(request, layout_of(4).encode(None)[0])


def test_centers_that_were_told_different_things_give_no_sum() -> None:
    """A coordinator that gives one center a different list of participants learns nothing."""
    federation, layout = Federation(), layout_of(4)
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    fewer = {n: a for n, a in federation.announcements().items() if n != "Zurich"}
    other = MaskRequest(context(), 4, fewer).to_bytes()
    for name in NAMES[:5]:
        request = other if name == "Berlin" else total.request()
        masked = federation.center(name).mask(request, layout.encode(None)[0])
        dealt = masked.dealt if name != "Berlin" else masked.dealt + bytes(48)
        total.add(name, Masked(dealt, masked.vector))
    with pytest.raises((Refused, Lost)):
        for name, request in total.reveal_requests().items():
            total.take(name, federation.center(name).reveal(request))
        total.mean()


def test_another_run_and_another_key_are_refused() -> None:
    federation = Federation()
    request = MaskRequest(context(run="ffff"), 4, federation.announcements()).to_bytes()
    with pytest.raises(Refused, match="for another run"):
        federation.center("Berlin").mask(request, layout_of(4).encode(None)[0])
    stale = federation.announcements()
    federation.keys["Berlin"] = X25519PrivateKey.generate()
    with pytest.raises(Refused, match="a different key for this center"):
        federation.center("Berlin").mask(
            MaskRequest(context(), 4, stale).to_bytes(), layout_of(4).encode(None)[0]
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"context": {"run": 1}}',
        b'{"context": null, "threshold": 2}',
    ],
)
def test_a_message_that_cannot_be_read_is_refused(data: bytes) -> None:
    center = Federation().center("Berlin")
    with pytest.raises(Refused):
        center.mask(data, layout_of(4).encode(None)[0])
    with pytest.raises(Refused):
        center.reveal(data)


def test_malformed_first_messages_count_as_vanished() -> None:
    federation, layout = Federation(), layout_of(4)
    total = MaskedSum(context(), 4, federation.announcements(), layout)
    good = federation.center("Berlin").mask(total.request(), layout.encode(None)[0])
    for bad in (
        Masked(good.dealt[:-1], good.vector),
        Masked(good.dealt, good.vector[:-1]),
        Masked(good.dealt, good.vector.astype(np.int64)),
    ):
        with pytest.raises(Refused):
            total.add("Berlin", bad)
    with pytest.raises(Refused):
        total.add("Oslo", good)
    total.add("Berlin", good)
    with pytest.raises(Refused):
        total.add("Berlin", good)
    with pytest.raises(Lost, match="1 masked updates arrived, but the threshold is 4"):
        total.reveal_requests()


def test_a_weak_key_is_refused() -> None:
    """With a point of small order, everyone knows the shared key."""
    federation = Federation()
    weak = bytes(32)
    signature = registered("Lyon").sign(Announcement.statement(RUN, "Lyon", weak))
    keys = {**federation.announcements(), "Lyon": Announcement(weak, signature)}
    with pytest.raises(Refused, match="weak"):
        federation.center("Berlin").mask(
            MaskRequest(context(), 4, keys).to_bytes(), layout_of(4).encode(None)[0]
        )


@pytest.mark.parametrize(("centers", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 4), (10, 7)])
def test_the_usual_threshold_is_safe(centers: int, threshold: int) -> None:
    assert usual_threshold(centers) == threshold
    assert 2 * threshold >= centers + 2
