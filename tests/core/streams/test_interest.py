"""Interest sets: only the maximal filters are asked for, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.filters.filter import Filter
from postroad.core.streams import interest
from postroad.core.streams.interest import EVERYTHING, ReducedSet, all_covered

bounds = st.integers(0, 4)
filters = st.one_of(
    st.builds("x > {}".format, bounds),
    st.builds("x > {} AND s = 'a'".format, bounds),
    st.just("s = 'a'"),
    st.just("s = 'b'"),
    st.just(""),
).map(Filter)


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
    assert all_covered(dict.fromkeys(maximal), members)
    assert all(f in members for f in maximal)
    assert not any(f.covers(g) for f in maximal for g in maximal if f is not g)
    assert len(reduced) == len(set(members))


def test_too_many_filters_widen_to_everything() -> None:
    """Past the bound the interest grows to match all, which is safe, and shrinks again."""
    reduced = ReducedSet()
    many = [Filter(f"n = {i}") for i in range(interest.INTEREST_MAX + 1)]
    for filter_ in many:
        reduced.add(filter_)
    assert reduced.maximal() == (EVERYTHING,)
    reduced.remove(many[0])
    assert set(reduced.maximal()) == set(many[1:])
