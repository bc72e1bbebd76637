"""What a log has lost reaches those who read it as a gap, between the rows around it."""

from __future__ import annotations

from tests.core.broker.test_retired_brokers import run
from tests.storage.rows import batch_of

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.protocol.orders import BrokerState, ClientUp, LogRead, LogReadFailed, Lost, PubendState, ReadLog, Send
from postroad.core.protocol.packets import Deliver, Gap, RangeRead, ReadRange, Subscribe, pubend_id

PUBEND, CLIENT = pubend_id(1), 5
EARLIER, LATER = batch_of([11, 12]), batch_of([31, 32])


def read(*lost: tuple[int, int], hi: int = 40) -> LogRead:
    return LogRead(PUBEND, 1, hi, (EARLIER, LATER), 0, tuple(Lost(lo, hi, "damaged") for lo, hi in lost))


def shape(result: LogRead, lo: int) -> list[tuple[int, int, int, int]]:
    return [(begin, hi, sum(map(len, rows)), released) for begin, hi, rows, released in result.stretches(lo)]


def test_what_was_read_is_cut_where_something_is_lost() -> None:
    """Stretches follow on each other; in a lost one everything up to its end is gone."""
    assert shape(read(), 0) == [(0, 40, 4, 0)]
    assert shape(read((20, 30)), 0) == [(0, 20, 2, 0), (20, 30, 0, 30), (30, 40, 2, 0)]
    assert shape(read((0, 10), (32, 40)), 0) == [(0, 10, 0, 10), (10, 32, 4, 0), (32, 40, 0, 40)]
    assert shape(LogRead(PUBEND, 1, 9, (), 0, (Lost(0, 9, "damaged"),)), 5) == [(5, 9, 0, 9)]
    assert shape(LogRead(PUBEND, 1, 9, (), 4, ()), 0) == [(0, 9, 0, 4)]


def started() -> Broker:
    broker = Broker(BrokerState(1, 1, (PubendState(PUBEND, 40),)), BrokerConfig(keep_s=1e6))
    broker.clock(1_000_000)
    run(broker, until=0.5)
    broker.fact(ClientUp(CLIENT), now=0.5)
    return broker


def answer(broker: Broker, order: ReadLog, *, lost: tuple[Lost, ...]) -> list[object]:
    rows = tuple(part for batch in (EARLIER, LATER) if len(part := batch.within(order.lo, order.hi)))
    broker.fact(LogRead(PUBEND, order.token, order.hi, rows, 0, lost), now=0.6)
    return [order.message for order in broker.outputs() if isinstance(order, Send)]


def test_a_range_is_read_around_what_is_lost() -> None:
    """Pieces follow on each other, and the lost one says that it is gone."""
    broker = started()
    broker.receive(ReadRange(PUBEND, "", 0, 40), link=CLIENT, now=0.6, packet=3)
    (order,) = [order for order in broker.outputs() if isinstance(order, ReadLog)]
    sent = answer(broker, order, lost=(Lost(12, 30, "damaged"),))
    pieces = [(each.lo, each.hi, each.released, each.more) for each in sent if isinstance(each, RangeRead)]
    assert pieces == [(0, 12, 0, True), (12, 30, 30, True), (30, 40, 0, False)]


def test_a_subscription_gets_the_rows_around_what_is_lost_and_a_gap() -> None:
    """In tick order, each once."""
    broker = started()
    broker.receive(Subscribe(1, "", earliest=True), link=CLIENT, now=0.6, packet=3)
    (order,) = [order for order in run(broker, until=1.0) if isinstance(order, ReadLog)]
    sent = answer(broker, order, lost=(Lost(12, 30, "damaged"),))
    told = [(type(each), each.lo, each.hi) for each in sent if isinstance(each, Deliver | Gap)]
    assert told == [(Deliver, 0, 12), (Gap, 12, 30), (Deliver, 30, 32)]


def test_a_read_that_failed_is_asked_for_again() -> None:
    """The disk could not read for a moment; nobody is told of a gap."""
    broker = started()
    broker.receive(Subscribe(1, "", earliest=True), link=CLIENT, now=0.6, packet=3)
    (order,) = [order for order in run(broker, until=1.0) if isinstance(order, ReadLog)]
    broker.fact(LogReadFailed(PUBEND, order.token), now=0.6)
    again = [order for order in run(broker, until=6.0) if isinstance(order, ReadLog)]
    assert again
    assert (again[0].lo, again[0].hi) >= (order.lo, order.hi)
