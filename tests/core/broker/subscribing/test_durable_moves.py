"""A durable subscription that moves is on somebody's disk at every moment."""

from __future__ import annotations

import msgspec
from tests.core.broker.machines import Machines

from postroad.core.broker.subscribing.durable import DURABLE_KEY, DurableRecord
from postroad.core.protocol.packets import Subscribe, Subscribed, Unsubscribe, Unsubscribed

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
        former = "orders" in machines.nodes[1].broker._durables.here
        assert former or is_stored_as_settled(machines.nodes[2].metadata)
        machines.run(0.05)
    assert is_stored_as_settled(machines.nodes[2].metadata)
    assert "orders" not in machines.nodes[1].broker._durables.here


def test_a_client_that_leaves_while_its_new_home_settles_leaves_it_there() -> None:
    """The record is about to be stored as settled, so it is not given up."""
    machines = moved_away()
    second = machines.nodes[2]
    for _ in range(40):
        if second.broker._durables.here["orders"].settling:
            break
        machines.finish_writes()
        machines.run(0.05)
    assert not second.broker._durables.here["orders"].settled
    machines.leave(2, LINK)
    machines.writes_finish = True
    machines.finish_writes()
    machines.run(3.0)
    assert is_stored_as_settled(second.metadata)
    assert "orders" not in machines.nodes[1].broker._durables.here


def half_moved() -> Machines:
    """Return three brokers, the third down; a subscription of the first is served by the second, which cannot settle so."""
    machines = Machines()
    for number in (1, 2, 3):
        machines.start(number)
        for other in range(1, number):
            machines.link(other, number)
    machines.run(3.0)
    machines.client(1, LINK)
    machines.give(1, Subscribe(1, "x > 1", "orders"), link=LINK, request=3)
    machines.run(3.0)
    machines.leave(1, LINK)
    machines.stop(3)
    machines.client(2, LINK)
    machines.give(2, Subscribe(1, "x > 1", "orders"), link=LINK, request=3)
    machines.run(3.0)
    assert machines.nodes[2].told(Subscribed)
    assert not machines.nodes[2].broker._durables.here["orders"].settled
    return machines


def test_a_subscription_deleted_at_its_home_is_deleted_where_it_was_moving_to() -> None:
    """The client went back, which the other broker has not noticed yet; it was told that the subscription is gone."""
    machines = half_moved()
    machines.client(1, LINK + 1)
    machines.give(1, Subscribe(1, "x > 1", "orders"), link=LINK + 1, request=3)
    machines.run(1.0)
    machines.give(1, Unsubscribe(1, forget=True), link=LINK + 1, request=4)
    machines.run(1.0)
    assert machines.nodes[1].told(Unsubscribed)
    for node in machines.nodes.values():
        assert "orders" not in node.broker._durables.here
        assert node.broker._durables.homes["orders"].broker == 0
        assert DURABLE_KEY + "orders" not in node.metadata


def test_a_subscription_that_was_moved_and_deleted_at_once_is_deleted() -> None:
    """Its old home was cut off when it moved, and heard of the move only after it had confirmed the deletion."""
    machines = half_moved()
    machines.unlink(1, 2)
    machines.start(3)
    machines.link(2, 3)
    machines.run(3.0)
    assert machines.nodes[2].broker._durables.here["orders"].settled
    machines.client(1, LINK + 1)
    machines.give(1, Subscribe(1, "x > 1", "orders"), link=LINK + 1, request=3)
    machines.run(1.0)
    machines.give(1, Unsubscribe(1, forget=True), link=LINK + 1, request=4)
    machines.run(1.0)
    assert machines.nodes[1].told(Unsubscribed)
    machines.link(1, 3)
    machines.run(1.0)
    for node in machines.nodes.values():
        assert "orders" not in node.broker._durables.here
        assert node.broker._durables.homes["orders"].broker == 0
