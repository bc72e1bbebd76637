"""Interest: what a broker asks its neighbour for, reduced by covering.

First how it travels between brokers: broker 1 hosts the pubend, broker 2 relays, broker 3 has the subscribers. Then the set of
filters behind it: only the maximal ones are asked for, whatever comes and goes.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.broker.overlay import Overlay

from postroad.core.broker.relaying import interest
from postroad.core.broker.relaying.interest import EVERYTHING, ReducedSet, interest_packets
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import Interest, InterestActive, pubend_id

HOST, RELAY, HERE = 1, 2, 3
PUBEND = pubend_id(HOST)

bounds = st.integers(0, 4)
filters = st.one_of(
    st.builds("x > {}".format, bounds),
    st.builds("x > {} AND s = 'a'".format, bounds),
    st.just("s = 'a'"),
    st.just("s = 'b'"),
    st.just(""),
).map(Filter)


any_filters = st.one_of(
    filters,
    st.builds("x IN ({}, {})".format, bounds, bounds).map(Filter),
    st.builds("x > {} OR s = 'b'".format, bounds).map(Filter),
    st.builds("x > {} OR x > 3".format, bounds).map(Filter),
    st.builds("x + y > {}".format, bounds).map(Filter),
    st.builds("x BETWEEN {} AND {}".format, bounds, bounds).map(Filter),
    st.builds("s LIKE '%{}%'".format, st.sampled_from("ab")).map(Filter),
)


def chains_end(reduced: ReducedSet, members: list[Filter]) -> bool:
    """Tell whether each step up from a member goes to a filter that covers it, and the last one is asked for."""
    maximal = set(reduced.maximal())
    for member in members:
        last, steps = member, 0
        while (above := reduced.above(last)) is not None:
            assert above.covers(last)
            assert above in reduced
            last, steps = above, steps + 1
            assert steps <= len(members)
        if last not in maximal:
            return False
    return True


# --- between brokers ---


def asked(overlay: Overlay, source: int, target: int) -> list[Interest]:
    """Return what one broker asked another for in the pubend of broker 1."""
    return [packet for packet in overlay.sent(Interest, source=source, target=target) if packet.pubend == PUBEND]


def line() -> Overlay:
    return Overlay.line(HOST, RELAY, HERE)


def test_without_subscribers_nothing_is_asked_for_and_nothing_comes() -> None:
    """A broker that nobody needs costs its neighbours nothing."""
    overlay = line()
    overlay.publisher(at=HOST).publish("a")
    overlay.run(3.0)
    assert overlay.sent(Interest) == []
    assert overlay.names_sent(HOST, RELAY) == []


def test_interest_goes_hop_by_hop_towards_the_pubend() -> None:
    """Each broker asks the neighbour that is nearest to the pubend's broker, and nobody else."""
    overlay = line()
    overlay.subscriber(at=HERE, filter_="x > 0")
    assert [packet.add for packet in asked(overlay, HERE, RELAY)] == [["x > 0"]]
    assert [packet.add for packet in asked(overlay, RELAY, HOST)] == [["x > 0"]]
    assert asked(overlay, HOST, RELAY) == asked(overlay, RELAY, HERE) == []


def test_what_is_covered_is_not_asked_for() -> None:
    """Of many filters only those go up that no other covers."""
    overlay = line()
    for filter_ in ("x > 0", "x > 10", "x = 20", "s = 'a'"):
        overlay.subscriber(at=HERE, filter_=filter_)
    assert [text for packet in asked(overlay, HERE, RELAY) for text in packet.add] == ["x > 0", "s = 'a'"]


def test_a_change_travels_as_the_difference_to_what_was_asked_before() -> None:
    """Only the first interest is sent in full."""
    overlay = line()
    first = overlay.subscriber(at=HERE, filter_="x > 0")
    overlay.subscriber(at=HERE, filter_="y > 0")
    first.unsubscribe()
    overlay.run(1.0)
    told = [(packet.full, packet.add, packet.remove) for packet in asked(overlay, HERE, RELAY)]
    assert told == [(True, ["x > 0"], []), (False, ["y > 0"], []), (False, [], ["x > 0"])]


def test_the_narrower_filter_is_asked_for_when_the_broader_one_goes() -> None:
    """One change takes one out and puts the other in, so nothing is missed between them."""
    overlay = line()
    broad, narrow = overlay.subscriber(at=HERE, filter_="x > 0"), overlay.subscriber(at=HERE, filter_="x > 10")
    publisher = overlay.publisher(at=HOST)
    broad.unsubscribe()
    publisher.publish("during the change", x=20)
    overlay.run(1.0)
    last = asked(overlay, HERE, RELAY)[-1]
    assert (last.add, last.remove) == (["x > 10"], ["x > 0"])
    publisher.publish("no longer asked for", x=5)
    publisher.publish("after the change", x=20)
    assert narrow.received == ["during the change", "after the change"]
    assert overlay.names_sent(RELAY, HERE) == narrow.received


def test_each_interest_has_a_number_that_never_comes_back() -> None:
    """Numbers ascend, and those of a new life of a broker lie above those of the former one."""
    overlay = line()
    for number in range(3):
        overlay.subscriber(at=HERE, filter_=f"x{number} > 0")
    overlay.crash(HERE)
    overlay.restart(HERE)
    overlay.subscriber(at=HERE, filter_="x > 0")
    epochs = [packet.epoch for packet in asked(overlay, HERE, RELAY)]
    assert len(epochs) == 4
    assert epochs == sorted(set(epochs))


def test_an_interest_without_an_answer_is_sent_again_in_full_and_ever_more_rarely() -> None:
    """After 2 seconds, then 4, then 8: a parent that has much to do is not given more."""
    overlay = line()
    with overlay.losing(InterestActive, to=HERE):
        subscriber = overlay.subscriber(at=HERE, filter_="x > 0", wait=False)
        sent_at: list[float] = []
        while len(sent_at) < 4 and overlay.now < 60:
            overlay.run(0.05)
            sent_at += [overlay.now] * (len(asked(overlay, HERE, RELAY)) - len(sent_at))
        assert not subscriber.is_subscribed
    waits = [later - earlier for earlier, later in pairwise(sent_at)]
    assert [round(wait / 2) for wait in waits] == [1, 2, 4]
    assert all(packet.full for packet in asked(overlay, HERE, RELAY))
    overlay.until(lambda: subscriber.is_subscribed)


# --- the set of filters ---


@given(st.lists(st.tuples(st.booleans(), any_filters), max_size=40), st.integers(0, 3), st.integers(0, 3))
def test_every_member_is_covered_however_little_is_searched(
    steps: list[tuple[bool, Filter]], searched: int, demoted: int
) -> None:
    """The limits make a set larger than it need be, never smaller, and the changes say exactly what it is."""
    asked: set[Filter] = set()
    reduced, members = ReducedSet(), list[Filter]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interest, "SEARCHED_MAX", searched)
        patch.setattr(interest, "DEMOTED_MAX", demoted)
        for add, filter_ in steps:
            if add:
                assert reduced.add(filter_) == (filter_ not in members)
                members.append(filter_)
            elif filter_ in members:
                members.remove(filter_)
                assert reduced.remove(filter_) == (filter_ not in members)
            came, went = reduced.take_changes() or ([], [])
            assert asked.isdisjoint(came)
            assert asked.issuperset(went)
            asked = (asked | set(came)) - set(went)
            assert asked == set(reduced.maximal())
            assert chains_end(reduced, members)


@given(st.lists(st.tuples(st.booleans(), filters), max_size=30))
def test_the_maximal_filters_cover_all_and_none_covers_another(steps: list[tuple[bool, Filter]]) -> None:
    """After any adds and removes, the set asks for exactly what its members need."""
    reduced, members = ReducedSet(), list[Filter]()
    for add, filter_ in steps:
        if add:
            reduced.add(filter_)
            members.append(filter_)
        elif filter_ in members:
            reduced.remove(filter_)
            members.remove(filter_)
    maximal = reduced.maximal()
    assert all(any(f.covers(member) for f in maximal) for member in members)
    assert all(f in members for f in maximal)
    assert not any(f.covers(g) for f in maximal for g in maximal if f is not g)
    assert len(reduced) == len(set(members))


def test_too_many_filters_widen_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound the interest grows to match all, which is safe, and shrinks when half are left."""
    monkeypatch.setattr(interest, "INTEREST_MAX", 100)
    reduced = ReducedSet()
    many = [Filter(f"n = {i}") for i in range(101)]
    for filter_ in many:
        reduced.add(filter_)
    assert reduced.maximal() == (EVERYTHING,)
    for filter_ in many[:50]:
        reduced.remove(filter_)
    assert reduced.maximal() == (EVERYTHING,)
    reduced.remove(many[50])
    assert set(reduced.maximal()) == set(many[51:])


def test_filters_that_are_too_long_widen_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes are bounded, too, so that a full interest fits the backlog of a link."""
    monkeypatch.setattr(interest, "INTEREST_BYTES_MAX", 10_000)
    reduced, long = ReducedSet(), [Filter(f"s = '{i}{'x' * 1000}'") for i in range(10)]
    for filter_ in long:
        reduced.add(filter_)
    assert reduced.maximal() == (EVERYTHING,)
    for filter_ in long[:6]:
        reduced.remove(filter_)
    assert set(reduced.maximal()) == set(long[6:])


def test_a_chain_is_taken_down_from_its_top_without_comparing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each filter hangs below the closest one, so the end of a broad one concerns only a few others."""
    compared = count_comparisons(monkeypatch)
    reduced, chain = ReducedSet(), [Filter(f"x > {i}") for i in range(2000)]
    for filter_ in chain:
        reduced.add(filter_)
    for filter_ in chain:
        reduced.remove(filter_)
    assert len(compared) <= 6 * len(chain)


def test_filters_below_many_others_change_hands_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broad filters go one after the other, and what they covered is not placed anew each time."""
    compared = count_comparisons(monkeypatch)
    reduced = ReducedSet()
    broad, narrow = (
        [Filter(f"x BETWEEN {i} AND {5000 + i}") for i in range(300)],
        [Filter(f"x = {1000 + i}") for i in range(1500)],
    )
    for filter_ in [*broad, *narrow]:
        reduced.add(filter_)
    assert set(reduced.maximal()) == set(broad)
    for filter_ in reversed(broad):
        reduced.remove(filter_)
    assert set(reduced.maximal()) == set(narrow)
    assert len(compared) <= 40 * (len(broad) + len(narrow))


def test_costly_filters_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison of such filters may take tens of milliseconds; a search stops before that."""
    compared = count_comparisons(monkeypatch)
    reduced = ReducedSet()
    costly = [Filter(" OR ".join(f"(a > {i + j} AND b < {j})" for j in range(100))) for i in range(30)]
    for filter_ in costly:
        reduced.add(filter_)
    assert len(compared) <= len(costly)
    assert set(reduced.maximal()) == set(costly)


def test_an_interest_is_cut_into_packets_that_fit_a_frame() -> None:
    """Long filters go one by one, short ones together; only the last packet says that nothing follows."""
    long = [Filter(" OR ".join(f"a{i} = {j}" for j in range(3000))) for i in range(3)]
    short = [Filter(f"n = {i}") for i in range(3000)]
    packets = list(interest_packets(1, 7, [*long, *short], short[:5], full=False))
    assert [t for packet in packets for t in packet.add] == [str(f) for f in [*long, *short]]
    assert [t for packet in packets for t in packet.remove] == [str(f) for f in short[:5]]
    assert [packet.more for packet in packets] == [True] * (len(packets) - 1) + [False]
    for packet in packets:
        texts = [*packet.add, *packet.remove]
        assert len(texts) == 1 or sum(map(len, texts)) <= interest.PACKET_CHARACTERS


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    compared: list[None] = []
    covers = Filter.covers

    def counted(self: Filter, other: Filter) -> bool:
        compared.append(None)
        return covers(self, other)

    monkeypatch.setattr(Filter, "covers", counted)
    return compared
