"""Interest sets: only the maximal filters are asked for, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.broker.relaying import interest
from postroad.core.broker.relaying.interest import EVERYTHING, ReducedSet, interest_packets
from postroad.core.filters.filter import Filter

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
