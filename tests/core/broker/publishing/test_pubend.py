"""The pubend: decided once, durable before announced, recognised when sent again."""

from __future__ import annotations

import pytest

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.batch.row_codec import Row
from postroad.core.broker.publishing.pubend import RESERVE_MS, Pubend
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import Append, PubendState, Send
from postroad.core.protocol.packets import PublishAcknowledged, PublishRefused, pubend_id
from postroad.errors import InvalidValueError, PostroadError
from postroad.types import MessageId

PUBEND, LINK, PUBLISHER = pubend_id(1), 7, 3


class Bench:
    """A pubend with its orders, and a log that takes appends when told to."""

    def __init__(self, state: PubendState | None = None, reserved: int = 0) -> None:
        self.orders: list[Output] = []
        self.pubend = Pubend(state or PubendState(PUBEND), reserved, self.orders)
        self.log: list[Batch] = []

    def appends(self) -> list[Append]:
        return [order for order in self.orders if isinstance(order, Append)]

    def write(self) -> tuple[int, int, tuple[Batch, ...]]:
        (order,) = self.appends()
        self.orders.remove(order)
        self.log.extend(order.batches)
        return self.pubend.appended(order.token)

    def acknowledged(self) -> list[int]:
        sent = [order.message for order in self.orders if isinstance(order, Send)]
        return [message.last for message in sent if isinstance(message, PublishAcknowledged)]

    def logged(self) -> list[int]:
        return [message.attributes["n"] for batch in self.log for message in batch]  # type: ignore[misc]


def row(number: int) -> Row:
    return (bytes(MessageId.make(PUBLISHER, 1, 1000 + number)), {"n": number}, b"payload")


def columns(*numbers: int) -> Batch:
    (batch,) = build_batches([row(n) for n in numbers])
    return batch


def id_tick(number: int) -> int:
    return MessageId.make(PUBLISHER, 1, 1000 + number).tick


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    """The acknowledgement follows the append, and the horizon moves with it."""
    bench = Bench()
    bench.pubend.open(PUBLISHER, LINK)
    bench.pubend.publish(PUBLISHER, [row(1), row(2)])
    bench.pubend.commit(5000, 0.0)
    assert bench.acknowledged() == []
    assert bench.pubend.horizon == 0
    lo, hi, _ = bench.write()
    assert (lo, hi) == (0, (5000 << 16) + 1)
    assert bench.acknowledged() == [id_tick(2)]


def test_what_arrives_during_a_write_becomes_one_append() -> None:
    """Group commit: rows and columns of any publisher, in the order they came, with ascending ticks."""
    bench = Bench()
    bench.pubend.open(PUBLISHER, LINK)
    bench.pubend.publish(PUBLISHER, [row(1)])
    bench.pubend.commit(5000, 0.0)
    bench.pubend.publish(PUBLISHER, [row(2)])
    bench.pubend.publish_columns(PUBLISHER, columns(3, 4))
    bench.pubend.publish(PUBLISHER, [row(5)])
    bench.pubend.commit(5000, 0.0)
    bench.write()
    bench.pubend.commit(5000, 0.0)
    assert len(bench.appends()) == 1
    bench.write()
    assert bench.logged() == [1, 2, 3, 4, 5]
    ticks = [int(t) for batch in bench.log for t in batch.ticks()]
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize("as_columns", [False, True])
def test_what_is_sent_again_is_recognised(as_columns: bool) -> None:
    """Rows taken before, durable or waiting, are not taken again; the acknowledgement is."""
    bench = Bench()
    bench.pubend.open(PUBLISHER, LINK)
    bench.pubend.publish(PUBLISHER, [row(1), row(2)])
    bench.pubend.commit(5000, 0.0)
    bench.pubend.open(PUBLISHER, LINK + 1)  # the client came back before the write was done
    if as_columns:
        bench.pubend.publish_columns(PUBLISHER, columns(1, 2, 3))
    else:
        bench.pubend.publish(PUBLISHER, [row(1), row(2), row(3)])
    bench.write()
    bench.pubend.commit(5000, 0.0)
    bench.write()
    assert bench.logged() == [1, 2, 3]
    bench.pubend.publish(PUBLISHER, [row(3)])
    assert bench.acknowledged()[-1] == id_tick(3)


def test_publishers_are_recognised_after_a_crash() -> None:
    """The last id of each publisher comes back with the log."""
    state = PubendState(PUBEND, last_tick=9 << 16, publishers=((PUBLISHER, id_tick(2)),))
    bench = Bench(state)
    assert bench.pubend.open(PUBLISHER, LINK) == id_tick(2)
    bench.pubend.publish(PUBLISHER, [row(1), row(2), row(3)])
    bench.pubend.commit(5000, 0.0)
    bench.write()
    assert bench.logged() == [3]


def test_new_ticks_lie_above_everything_reserved_even_when_the_clock_went_back() -> None:
    """Silence was perhaps announced up to the reserved horizon: no data may appear at or below it."""
    reserved = 90_000 << 16
    bench = Bench(PubendState(PUBEND, last_tick=50_000 << 16), reserved)
    bench.pubend.open(PUBLISHER, LINK)
    bench.pubend.publish(PUBLISHER, [row(1)])
    bench.pubend.commit(40_000, 0.0)
    _, hi, _ = bench.write()
    assert hi > reserved


def test_silence_is_announced_only_as_far_as_it_is_reserved() -> None:
    """Without a stored horizon nothing is announced; with one, up to the clock or the horizon."""
    bench = Bench()
    assert bench.pubend.silence(5000) is None
    wanted = bench.pubend.reserve(5000)
    assert wanted == (5000 + RESERVE_MS) << 16
    bench.pubend.reserved = wanted
    assert bench.pubend.silence(6000) == (0, 6000 << 16)
    assert bench.pubend.silence(10**6) == (6000 << 16, wanted)
    assert bench.pubend.reserve(6000) is None
    assert bench.pubend.reserve(5000 + RESERVE_MS) == (5000 + RESERVE_MS + RESERVE_MS) << 16


def test_restarts_do_not_take_the_stream_ever_further_ahead_of_the_clock() -> None:
    """After a crash it goes on where silence may have been announced; that is not reserved from there on again."""
    reserved = 0
    for life in range(20):
        pubend = Bench(reserved=reserved).pubend
        wanted = pubend.reserve(5000 + life)
        reserved = max(reserved, wanted or 0)
    assert reserved <= (5020 + RESERVE_MS) << 16


def test_no_silence_is_announced_over_rows_that_are_being_written() -> None:
    """Their ticks are given out already; announcing past them would call them silence."""
    bench = Bench(reserved=10**6 << 16)
    bench.pubend.open(PUBLISHER, LINK)
    bench.pubend.publish(PUBLISHER, [row(1)])
    bench.pubend.commit(10**7, 0.0)
    assert bench.pubend.silence(10**8) is None


def test_a_failed_append_is_refused_and_the_stream_goes_on() -> None:
    """Nothing of it counts as taken, so the client may send it again."""
    bench = Bench()
    bench.pubend.open(PUBLISHER, LINK)
    bench.pubend.publish(PUBLISHER, [row(1)])
    bench.pubend.commit(5000, 0.0)
    bench.pubend.publish_columns(PUBLISHER, columns(2, 3))
    (order,) = bench.appends()
    bench.orders.clear()
    bench.pubend.append_failed(order.token, PostroadError("the disk is full"))
    refused = [o.message for o in bench.orders if isinstance(o, Send)]
    assert [m.reason for m in refused if isinstance(m, PublishRefused)] == ["the disk is full"] * 2
    bench.orders.clear()
    bench.pubend.publish(PUBLISHER, [row(1), row(4)])
    bench.pubend.commit(5000, 0.0)
    bench.write()
    assert bench.logged() == [1, 4]


def test_ids_that_do_not_ascend_are_refused() -> None:
    """Otherwise a duplicate could not be told from a new message."""
    bench = Bench()
    bench.pubend.open(PUBLISHER, LINK)
    with pytest.raises(InvalidValueError):
        bench.pubend.publish(PUBLISHER, [row(2), row(1)])
    with pytest.raises(InvalidValueError):
        bench.pubend.publish_columns(PUBLISHER, columns(2, 1))
