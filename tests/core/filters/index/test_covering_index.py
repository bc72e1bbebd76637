"""The covering index offers the members worth comparing, and its searches do not grow with their number."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.filters.filter import Filter
from postroad.core.filters.index.covering_index import STEPS_MAX, CoveringIndex, Search

numbers = st.integers(0, 6)
letters = st.sampled_from("ab")
single = st.one_of(
    st.builds("x > {}".format, numbers),
    st.builds("x <= {}".format, numbers),
    st.builds("x = {}".format, numbers),
    st.builds("x <> {}".format, numbers),
    st.builds("x BETWEEN {} AND 9".format, numbers),
    st.builds("x IN ({}, 2, 5)".format, numbers),
    st.builds("x LIKE '{}%'".format, letters),
    st.builds("x = '{}b'".format, letters),
    st.builds("x LIKE '%{}'".format, letters),
    st.just("x IS NULL"),
    st.just("x IS NOT NULL"),
    st.just("x"),
    st.just("NOT x"),
)
one_range = st.builds("{} AND s = '{}' AND t = {}".format, single, letters, numbers)
filters = st.one_of(single, one_range, st.builds("s = '{}'".format, letters), st.just("")).map(Filter)


@given(st.lists(filters, max_size=12, unique=True), filters)
def test_it_offers_every_member_above_and_below(members: list[Filter], wanted: Filter) -> None:
    """As long as members are few, whatever covers a conjunction, or is covered by it, is among the candidates."""
    index: CoveringIndex[Filter] = CoveringIndex()
    for member in members:
        index.add(member, member.hulls)
    hull = wanted.hulls[0]
    above = list(index.above(hull, Search()))
    below = list(index.below(hull, Search(10_000)))
    assert [m for m in members if m.covers(wanted) and m not in above] == []
    assert [m for m in members if wanted.covers(m) and m not in below] == []


@given(st.lists(filters, max_size=40, unique=True), filters)
def test_it_offers_every_member_that_overlaps(members: list[Filter], wanted: Filter) -> None:
    """Whatever may have a message in common with a filter stands under a hull that meets one of its hulls."""
    index: CoveringIndex[Filter] = CoveringIndex()
    for member in members:
        index.add(member, member.hulls)
    met = [member for hull in wanted.hulls for member in index.meeting(hull)]
    assert [m for m in members if m.overlaps(wanted) is not False and m not in met] == []


@given(st.lists(st.tuples(st.booleans(), filters), max_size=40))
def test_members_come_and_go(steps: list[tuple[bool, Filter]]) -> None:
    """What was taken out is not found, what is left is."""
    index: CoveringIndex[Filter] = CoveringIndex()
    members: dict[Filter, None] = {}
    for add, member in steps:
        if add and member not in members:
            index.add(member, member.hulls)
            members[member] = None
        elif not add and member in members:
            index.remove(member)
            del members[member]
    assert len(index) == len(members)
    everything = Filter("").hulls[0]
    assert set(index.below(everything, Search(10_000))) == set(members)


@pytest.mark.parametrize("count", [300, 3000])
def test_nothing_is_missed_among_many_filters_on_one_attribute(count: int) -> None:
    """Intervals are found by their ends, however many there are."""
    random = Random(5)
    index: CoveringIndex[Filter] = CoveringIndex()
    spans = [(low, low + random.choice([1, 5, 900])) for low in (random.randrange(100_000) for _ in range(count))]
    for low, high in dict.fromkeys(spans):
        member = Filter(f"x BETWEEN {low} AND {high}")
        if member not in index:
            index.add(member, member.hulls)
    for _ in range(50):
        low = random.randrange(100_000)
        wanted = Filter(f"x BETWEEN {low} AND {low + 3}")
        search = Search()
        found = next((m for m in index.above(wanted.hulls[0], search) if m.covers(wanted)), None)
        assert (found is not None) == any(a <= low and low + 3 <= b for a, b in spans)


def test_a_search_ends_whatever_the_members() -> None:
    """Ranges on several attributes can all be candidates; a search looks at a limited number of them."""
    index: CoveringIndex[Filter] = CoveringIndex()
    for i in range(2000):
        member = Filter(f"a > {i} AND b > {2000 - i} AND c > {i * 7 % 2003}")
        index.add(member, member.hulls)
    wanted = Filter("a > 1990 AND b > 1990 AND c > 3000 AND d = 1")
    assert len(list(index.above(wanted.hulls[0], Search()))) <= STEPS_MAX
    assert len(list(index.below(Filter("a > 5").hulls[0], Search()))) <= STEPS_MAX
