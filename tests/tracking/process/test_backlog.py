"""What waits to be tracked is counted, and what is dropped is remembered."""

from __future__ import annotations

from postroad.tracking.process.backlog import Backlog, Missed, order_bytes
from postroad.tracking.tap.orders import Track


def order(wall_ms: int, entries: int = 3) -> Track:
    return Track(wall_ms, (), entries, 100)


def test_what_is_beyond_the_bound_is_dropped_and_told_once() -> None:
    backlog = Backlog(order_bytes(order(1)))
    assert backlog.admit(order(1))
    assert not backlog.admit(order(2))
    assert not backlog.admit(order(5))
    assert backlog.missed_entries == 6
    assert backlog.pop_missed() == Missed(6, 2, 5)
    assert backlog.pop_missed() is None


def test_whoever_follows_begins_to_count_at_nothing() -> None:
    """What was given to one that has ended waits no longer, and is missed even if nothing is dropped until another one begins."""
    backlog = Backlog(order_bytes(order(1)))
    assert backlog.admit(order(1))
    backlog.start_over(7)
    assert backlog.waiting == 0
    assert backlog.pop_missed() == Missed(0, 7, 7)
    assert backlog.admit(order(8))


def test_what_is_dropped_in_between_is_missed_from_the_end_on() -> None:
    backlog = Backlog()
    backlog.start_over(7)
    backlog.drop(order(9))
    assert backlog.pop_missed() == Missed(3, 7, 9)
