"""The holds of all brokers on one broker's logs: the newest of each broker counts."""

from __future__ import annotations

from postroad.core.broker.holding.table import HOLDERS_MAX, HoldTable
from postroad.core.protocol.packets import Hold, Positions

P = 0x100


def hold(source: int, version: int, ticks: Positions, *, incarnation: int = 1) -> Hold:
    return Hold(1, source, 8, incarnation, version, ticks)


def test_an_older_hold_of_a_broker_that_holds_nothing_any_more_is_refused() -> None:
    """It took a longer route. Accepted, it held the log for ever (seed 2000046)."""
    table = HoldTable()
    table.take(hold(3, 11, {P: 5}))
    table.take(hold(3, 18, {}))
    assert table.changes() == (("hold/3", None),)
    late = table.take(hold(3, 11, {P: 5}))
    assert not late.accepted
    assert late.newer is not None
    assert (late.newer.incarnation, late.newer.version) == (1, 18)
    assert table.lowest(P) is None


def test_a_broker_that_holds_nothing_makes_room_for_one_that_does() -> None:
    """The table is bounded, and numbers without a hold are the first to go."""
    table = HoldTable()
    table.take(hold(3, 1, {}))
    for source in range(4, 3 + HOLDERS_MAX):
        assert table.take(hold(source, 1, {P: source})).accepted
    assert table.take(hold(3 + HOLDERS_MAX, 1, {P: 2})).accepted
    assert not table.take(hold(2, 1, {P: 1})).accepted
    assert table.lowest(P) == 2
