"""A durable subscription exists while its client is away: pubends that appear meanwhile belong to it from their first tick."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.broker.machines import START_MS, Machine, Machines
from tests.core.broker.overlay import Overlay

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.subscribing.durable import CLOCKS_APART_MS, DURABLE_KEY, DurableRecord
from postroad.core.protocol.packets import Acknowledge, Gap, InterestActive, Subscribe, Subscribed, pubend_id

LINK, NEW = 5, pubend_id(3)


def record(node: Machine) -> DurableRecord:
    return msgspec.msgpack.decode(node.metadata[DURABLE_KEY + "orders"], type=DurableRecord)


def released(node: Machine, pubend: int) -> int:
    """Return how far a broker would release a pubend now."""
    return node.broker._releasing._ordered.get(pubend, 0)


def away(late_ms: int = 10 * CLOCKS_APART_MS) -> Machines:
    """Return two linked brokers; a durable subscription is at home at the first, and its client is away."""
    machines = Machines(BrokerConfig(silence_s=0.2))
    machines.now = late_ms / 1000  # so that the creation is not at the beginning of time
    machines.start(1)
    machines.start(2)
    machines.link(1, 2)
    machines.run(1.0)
    machines.client(1, LINK)
    machines.give(1, Subscribe(1, "x > 1", "orders"), link=LINK, request=3)
    machines.run(1.0)
    machines.leave(1, LINK)
    machines.run(1.0)
    return machines


def comes_back(machines: Machines, number: int = 1, known: dict[int, int] | None = None) -> tuple[Machine, dict[int, int]]:
    machines.client(number, LINK + 50)
    packet = Subscribe(1, "x > 1", "orders", known or {}, acknowledged=known or {})
    machines.give(number, packet, link=LINK + 50, request=3)
    machines.run(5.0)
    node = machines.nodes[number]
    (answer,) = [packet for link, packet in node.sent if link == LINK + 50 and isinstance(packet, Subscribed)]
    assert isinstance(answer, Subscribed)
    return node, answer.starts


def test_a_pubend_added_while_the_client_is_away_is_held_and_begins_at_its_first_tick() -> None:
    """The home takes it up at once, stores that, and its log is not released."""
    machines = away()
    machines.start(3)
    machines.link(2, 3)
    machines.run(3.0)
    home = record(machines.nodes[1])
    assert home.cursors[NEW] == home.starts[NEW]
    assert home.created_ms - home.cursors[NEW] // (1 << 16) == CLOCKS_APART_MS
    assert released(machines.nodes[3], NEW) <= home.cursors[NEW]
    _, starts = comes_back(machines)
    assert starts[NEW] == home.cursors[NEW]


def test_the_home_may_be_down_while_a_pubend_is_added() -> None:
    """The new broker hears of the name from others and releases nothing until the home has told what it needs."""
    machines = away()
    disk = machines.stop(1)
    machines.start(3)
    machines.link(2, 3)
    machines.run(60.0)
    assert released(machines.nodes[3], NEW) == 0
    machines.start(1, disk, incarnation=2)
    machines.link(1, 2)
    machines.run(2.0)
    cursor = record(machines.nodes[1]).cursors[NEW]
    assert released(machines.nodes[3], NEW) <= cursor
    _, starts = comes_back(machines)
    assert starts[NEW] == cursor


def test_messages_of_a_new_broker_are_kept_for_a_home_that_is_down() -> None:
    """The new broker releases none of them before the home of a name that it has heard of has told what it needs."""
    overlay = Overlay.line(1, 2)
    subscriber = overlay.subscriber(1, "n = 1", name="orders")
    subscriber.disconnect()
    overlay.run(1)
    overlay.crash(1)
    overlay.start(3)
    overlay.link(2, 3)
    overlay.publisher(3).publish("a", "b", n=1)
    overlay.run(60)
    assert overlay.logged(3) == ["a", "b"]
    overlay.restart(1)
    subscriber.come_back()
    overlay.until(lambda: subscriber.received == ["a", "b"])
    subscriber.acknowledge()
    overlay.until(lambda: overlay.logged(3) == [])


def test_the_cursor_of_a_new_pubend_moves_with_the_subscription() -> None:
    """A client that returns elsewhere, with positions that do not name the new pubend, gets it from the first tick."""
    machines = away()
    machines.start(3)
    machines.link(2, 3)
    machines.run(3.0)
    before = record(machines.nodes[1])
    known = {pubend: tick for pubend, tick in before.cursors.items() if pubend != NEW}
    node, starts = comes_back(machines, 2, known)
    assert starts[NEW] == before.cursors[NEW]
    assert (record(node).created_ms, record(node).starts) == (before.created_ms, before.starts)
    assert DURABLE_KEY + "orders" not in machines.nodes[1].metadata


@pytest.mark.parametrize("before_creation", [True, False])
def test_what_a_new_pubend_released_before_it_was_held_is_a_gap_unless_it_is_older_than_the_name(before_creation: bool) -> None:
    """A broker that ran alone may have let go of messages; the client is told of those it should have had."""
    machines = away()
    gone = START_MS + (1000 if before_creation else int(machines.now * 1000)) << 16
    machines.start(3, released=gone)
    machines.run(1.0)
    machines.link(2, 3)
    machines.run(3.0)
    home, starts = comes_back(machines)
    gaps = [packet for packet in home.told(Gap) if isinstance(packet, Gap) and packet.pubend == NEW]
    assert starts[NEW] < gone or before_creation
    assert [(gap.lo, gap.hi) for gap in gaps] == ([] if before_creation else [(starts[NEW], gone)])


@pytest.mark.parametrize("moves", [False, True])
def test_what_is_released_after_the_start_was_told_is_a_gap_though_nothing_was_acknowledged_since(moves: bool) -> None:
    """A start that was told is a promise; only a first start may be moved behind what is older than the name."""
    machines = away()
    machines.start(3)
    machines.link(2, 3)
    machines.run(3.0)
    _, starts = comes_back(machines)
    machines.leave(1, LINK + 50)
    machines.run(1.0)
    disk = machines.stop(3)
    gone = record(machines.nodes[1]).created_ms - 1000 << 16
    machines.start(3, disk, released=gone, incarnation=2)
    machines.link(2, 3)
    machines.run(3.0)
    known = {pubend: tick for pubend, tick in record(machines.nodes[1]).cursors.items() if pubend != NEW}
    machines.nodes[1].sent.clear()
    home, again = comes_back(machines, 2, known) if moves else comes_back(machines)
    assert again[NEW] == starts[NEW] < gone
    gaps = [packet for packet in home.told(Gap) if isinstance(packet, Gap) and packet.pubend == NEW]
    assert [(gap.lo, gap.hi) for gap in gaps] == [(starts[NEW], gone)]


def test_a_pubend_that_goes_out_of_reach_during_the_creation_is_not_held_for_ever() -> None:
    """The subscription begins there with its creation; its hold follows its acknowledgements once the broker is back."""
    machines = away()
    machines.client(1, LINK + 1)
    machines.loses = (InterestActive,)
    machines.give(1, Subscribe(1, "x > 1", "later"), link=LINK + 1, request=3)
    machines.unlink(1, 2)
    machines.loses = ()
    machines.run(2.0)
    machines.link(1, 2)
    machines.run(8.0)
    progress = next(s for s in machines.nodes[1].broker._edge.subscriptions.values() if s.name == "later").progress
    ahead = progress[pubend_id(2)].told
    machines.give(1, Acknowledge(1, {pubend_id(2): ahead}), link=LINK + 1)
    assert machines.nodes[1].broker._edge.holds()[pubend_id(2)] == ahead
