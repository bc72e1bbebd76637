"""A broker that is gone for good holds up nothing, once it is said to be retired."""

from __future__ import annotations

import msgspec
import pytest

from postroad.core.broker.context import KNOWN_KEY, BrokerConfig
from postroad.core.broker.holding.table import HOLD_KEY, HoldRecord
from postroad.core.broker.machine import Broker
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import (
    Append,
    Appended,
    BrokerState,
    ClientUp,
    PubendState,
    Refuse,
    ReleaseLog,
    Send,
    Store,
    Stored,
)
from postroad.core.protocol.packets import Subscribe, Subscribed, pubend_id
from postroad.errors import DurableElsewhereError

PUBEND, LINK, GONE = pubend_id(1), 5, 9
METADATA = (
    (KNOWN_KEY, msgspec.msgpack.encode({GONE: [pubend_id(GONE)]})),
    (f"{HOLD_KEY}{GONE}", msgspec.msgpack.encode(HoldRecord(1, 1, {PUBEND: 0}))),
)


def run(broker: Broker, *, until: float) -> list[Output]:
    """Carry out everything but sends until a time; return all orders."""
    done: list[Output] = []
    now = 0.0
    while now < until:
        broker.clock(1_000_000 + int(now * 1000))
        broker.wake(now=now)
        while orders := broker.outputs():
            done += orders
            for order in orders:
                if isinstance(order, Store):
                    broker.fact(Stored(order.token), now=now)
                elif isinstance(order, Append):
                    broker.fact(Appended(order.pubend, order.token), now=now)
        now += 0.1
    return done


def started(retired: tuple[int, ...]) -> tuple[Broker, list[Output]]:
    broker = Broker(BrokerState(1, 1, (PubendState(PUBEND, last_tick=1000 << 16),), METADATA), BrokerConfig(retired=retired))
    broker.fact(ClientUp(LINK), now=0.0)
    return broker, run(broker, until=0.5)


@pytest.mark.parametrize("retired", [False, True])
def test_a_new_durable_name_waits_for_a_known_broker_unless_it_is_retired(retired: bool) -> None:
    """It could be at home there; only an operator knows that the broker never returns."""
    broker, _ = started((GONE,) if retired else ())
    broker.receive(Subscribe(1, "x > 1", "orders"), link=LINK, now=0.5, packet=3)
    orders = run(broker, until=6.0)
    answered = any(isinstance(o, Send) and isinstance(o.message, Subscribed) for o in orders)
    refused = any(isinstance(o, Refuse) and isinstance(o.error, DurableElsewhereError) for o in orders)
    assert (answered, refused) == (retired, not retired)


@pytest.mark.parametrize("retired", [False, True])
def test_the_logs_are_held_for_a_known_broker_unless_it_is_retired(retired: bool) -> None:
    """Its subscribers may come back with it, or never."""
    broker, orders = started((GONE,) if retired else ())
    released = [o.tick for o in orders + run(broker, until=4.0) if isinstance(o, ReleaseLog)]
    assert bool(released) == retired
