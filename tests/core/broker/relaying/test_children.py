"""The interest of a child: changes in one packet or several, and what counts meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from postroad.core.broker.relaying import children
from postroad.core.broker.relaying.children import Change, Child
from postroad.core.broker.relaying.interest import EVERYTHING
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import Interest

A, B, C = (Filter(f"x = {i}") for i in range(3))


def interest(
    epoch: int, *, full: bool = False, add: tuple[Filter, ...] = (), remove: tuple[Filter, ...] = (), more: bool = False
) -> Interest:
    return Interest(1, epoch, full, [str(f) for f in add], [str(f) for f in remove], more)


def taken(child: Child, packet: Interest) -> Change | None:
    change = child.take(packet, Filter)
    if change is not None:
        child.pending.append(change)
    return change


def test_a_full_interest_in_several_packets_is_one_change() -> None:
    """Nothing counts before the last packet; what it leaves out goes."""
    child = Child(1)
    taken(child, interest(1, full=True, add=(A,)))
    assert taken(child, interest(2, full=True, add=(B,), more=True)) is None
    assert set(child.latest) == {A}
    change = taken(child, interest(2, add=(C,)))
    assert change is not None
    assert (set(change.add), set(change.remove), set(child.latest)) == ({B, C}, {A}, {B, C})


def test_a_filter_that_goes_and_comes_counts_twice_until_the_first_change_is_active() -> None:
    """Each pending change is the difference to the one before, so its end takes away exactly what it brought."""
    child = Child(1)
    taken(child, interest(1, full=True, add=(A, B)))
    taken(child, interest(2, remove=(A,)))
    taken(child, interest(3, add=(A,)))
    assert Counter(child.counted()) == {A: 2, B: 1}


def test_an_unfinished_change_is_not_lost_when_another_begins() -> None:
    """A neighbour that leaves packets out gets the union of both, and every filter is counted once."""
    child = Child(1)
    assert taken(child, interest(1, full=True, add=(A,), more=True)) is None
    change = taken(child, interest(2, full=True, add=(B,)))
    assert change is not None
    assert (change.epoch, set(change.add), set(child.latest)) == (2, {B}, {B})
    assert taken(child, interest(3, add=(A,), more=True)) is None
    change = taken(child, interest(4, full=True, add=(C,)))
    assert change is not None
    assert (set(change.add), set(change.remove), set(child.latest)) == ({C}, {B}, {C})


def test_more_filters_than_the_bound_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child with too many gets everything, until it sends a full interest that is smaller."""
    monkeypatch.setattr(children, "FILTERS_MAX", 10)
    child = Child(1)
    for i in range(30):
        taken(child, interest(i + 1, full=i == 0, add=(Filter(f"y = {i}"),)))
    assert EVERYTHING in child.latest
    assert len(child.latest) <= 12
    taken(child, interest(40, full=True, add=tuple(Filter(f"z = {i}") for i in range(30))))
    assert EVERYTHING in child.latest
    assert len(child.latest) <= 12
    taken(child, interest(41, full=True, add=(A,)))
    assert set(child.latest) == {A}
