"""A durable subscription that moves is on somebody's disk at every moment."""

from __future__ import annotations

import msgspec
from tests.core.broker.machines import Machines

from postroad.core.broker.subscribing.durable import DURABLE_KEY, DurableRecord
from postroad.core.protocol.packets import Subscribe, Subscribed

LINK = 5


def is_stored_as_settled(metadata: dict[str, bytes]) -> bool:
    value = metadata.get(DURABLE_KEY + "orders")
    return value is not None and msgspec.msgpack.decode(value, type=DurableRecord).settled


def moved_away() -> Machines:
    """Return two brokers; a durable subscription of the first has left, and comes to the second, whose writes wait."""
    machines = Machines()
    machines.start(1)
    machines.start(2)
    machines.link(1, 2)
    machines.run(3.0)
    machines.client(1, LINK)
    machines.give(1, Subscribe(1, "x > 1", "orders"), link=LINK, request=3)
    machines.run(3.0)
    assert machines.nodes[1].told(Subscribed)
    machines.leave(1, LINK)
    machines.run(3.0)
    machines.writes_finish = False
    machines.client(2, LINK)
    machines.give(2, Subscribe(1, "x > 1", "orders"), link=LINK, request=3)
    return machines


def test_the_former_home_lets_go_only_of_what_is_stored_as_settled() -> None:
    """Without that, both would drop the record if the new home crashed: it leaves to the former one what never settled."""
    machines = moved_away()
    for _ in range(40):
        machines.finish_writes()
        former = "orders" in machines.nodes[1].broker._parts.durables.here
        assert former or is_stored_as_settled(machines.nodes[2].metadata)
        machines.run(0.05)
    assert is_stored_as_settled(machines.nodes[2].metadata)
    assert "orders" not in machines.nodes[1].broker._parts.durables.here


def test_a_client_that_leaves_while_its_new_home_settles_leaves_it_there() -> None:
    """The record is about to be stored as settled, so it is not given up."""
    machines = moved_away()
    second = machines.nodes[2]
    for _ in range(40):
        if second.broker._parts.durables.here["orders"].settling:
            break
        machines.finish_writes()
        machines.run(0.05)
    assert not second.broker._parts.durables.here["orders"].settled
    machines.leave(2, LINK)
    machines.writes_finish = True
    machines.finish_writes()
    machines.run(3.0)
    assert is_stored_as_settled(second.metadata)
    assert "orders" not in machines.nodes[1].broker._parts.durables.here
