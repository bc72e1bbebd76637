"""A gap that the cache cannot hold is left to catching up at once; a small one is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.broker.machines import RisingEpochs

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.broker.knowledge import KnowledgeRange
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.subscribing.edge import NACK_DELAY_S, Edge
from postroad.core.broker.subscribing.subscription import Event, State, Subscription
from postroad.core.filters.filter import Filter
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import Nack

PUBEND, PARENT, CLIENT = 256, 1, 2
FILTER = Filter("x > 0")
CACHE_BYTES = 256 << 10


class Subscriber:
    """One live subscription to a pubend of another broker."""

    def __init__(self) -> None:
        self.orders: list[Output] = []
        self.stream = Stream(PUBEND, hosted_here=False, cache_bytes=CACHE_BYTES, epochs=RisingEpochs(), orders=self.orders)
        self.edge = Edge({PUBEND: self.stream}, self.orders)
        self.stream.set_parent(PARENT, 0.0)
        self.subscription: Subscription = self.edge.add(CLIENT, 1, FILTER, None, {}, done={}, earliest=False)
        self.stream.want((FILTER,), (), 0.0)
        self.edge.wait_for(self.subscription, PUBEND)
        self.stream.interest_active(PARENT, self.stream.epoch_sent, 100, 0.0)
        for subscription in self.edge.waiting(PUBEND, self.stream.epoch_active):
            self.edge.activate(subscription, PUBEND, 100)
            for step in (Event.HELD, Event.STORED):
                subscription.progress[PUBEND].apply(step)
            self.edge.announce(subscription, PUBEND)
        assert self.state is State.LIVE

    @property
    def state(self) -> State:
        return self.subscription.progress[PUBEND].state

    def learn(self, lo: int, hi: int) -> None:
        self.stream.learn(KnowledgeRange(lo, hi, self.stream.epoch_active, rows_at(hi)))
        self.edge.advance(PUBEND, 0.0)

    def nacks(self) -> list[Nack]:
        return [order.message for order in self.orders if isinstance(order, Send) and isinstance(order.message, Nack)]


def rows_at(tick: int) -> Batch:
    (batch,) = build_batches([(tick.to_bytes(16, "big"), {"x": 1}, b"y" * 8000)], np.array([tick], np.uint64))
    return batch


@pytest.mark.parametrize("ranges", [5, 500])
def test_a_gap_is_asked_for_unless_the_cache_has_dropped_what_follows(ranges: int) -> None:
    """No try is wasted on a gap that cannot be filled: its subscription catches up from the log instead."""
    subscriber = Subscriber()
    for i in range(ranges):
        subscriber.learn(1000 + i, 1001 + i)
    subscriber.edge.curious(PUBEND, 2 * NACK_DELAY_S)
    overflowed = subscriber.stream.cache.evicted > 0
    assert overflowed == (ranges == 500)
    assert bool(subscriber.nacks()) is not overflowed
    assert subscriber.state is (State.CATCHING_UP if overflowed else State.LIVE)
    if overflowed:
        assert subscriber.edge.streams[PUBEND].delivered == subscriber.stream.cache.frontier
