"""An acknowledgement that a broker confirms is on its disk."""

from __future__ import annotations

import msgspec
from tests.core.broker.machines import Machines

from postroad.core.broker.subscribing.durable import DURABLE_KEY, DurableRecord
from postroad.core.protocol.packets import Acknowledge, AcknowledgementStored, Advance, Subscribe, Subscribed, pubend_id

PUBEND, LINK = pubend_id(1), 5


def subscribed() -> tuple[Machines, int]:
    """Return a broker with a durable subscription that was told of its stream, and how far that is."""
    machines = Machines()
    node = machines.start(1)
    machines.run(1.5)
    machines.client(1, LINK)
    machines.give(1, Subscribe(1, "x > 1", "orders"), link=LINK, request=3)
    assert node.told(Subscribed)
    machines.run(12.0)
    last = node.told(Advance)[-1]
    assert isinstance(last, Advance)
    return machines, last.positions[PUBEND]


def stored_cursor(machines: Machines) -> int:
    value = machines.nodes[1].metadata[DURABLE_KEY + "orders"]
    return msgspec.msgpack.decode(value, type=DurableRecord).cursors[PUBEND]


def test_an_acknowledgement_is_confirmed_when_it_is_on_disk_and_not_before() -> None:
    """`AcknowledgementStored` follows the write, and the stored record holds what it says."""
    machines, tick = subscribed()
    node = machines.nodes[1]
    machines.writes_finish = False
    machines.give(1, Acknowledge(1, {PUBEND: tick}, confirm=True), link=LINK)
    assert not node.told(AcknowledgementStored)
    machines.finish_writes()
    assert node.told(AcknowledgementStored) == [AcknowledgementStored(1, {PUBEND: tick})]
    assert stored_cursor(machines) == tick


def test_acknowledgements_that_come_during_a_write_are_stored_together() -> None:
    """Any number of them costs one more write, and each is covered by a confirmation."""
    machines, tick = subscribed()
    node = machines.nodes[1]
    machines.writes_finish = False
    for back in (30, 20, 10, 0):
        machines.give(1, Acknowledge(1, {PUBEND: tick - back}, confirm=True), link=LINK)
    assert len(node.unfinished) == 1
    machines.finish_writes()
    assert node.told(AcknowledgementStored) == [AcknowledgementStored(1, {PUBEND: tick - 30})]
    assert len(node.unfinished) == 1
    machines.finish_writes()
    assert node.told(AcknowledgementStored)[-1] == AcknowledgementStored(1, {PUBEND: tick})


def test_what_is_stored_already_is_confirmed_at_once() -> None:
    """A client that came back and says again what its broker knows need not wait for a write."""
    machines, tick = subscribed()
    node = machines.nodes[1]
    machines.give(1, Acknowledge(1, {PUBEND: tick}, confirm=True), link=LINK)
    machines.writes_finish = False
    machines.give(1, Acknowledge(1, {PUBEND: tick}, confirm=True), link=LINK)
    assert node.told(AcknowledgementStored) == [AcknowledgementStored(1, {PUBEND: tick})] * 2
    assert not node.unfinished


def test_nothing_is_confirmed_that_was_not_asked_for() -> None:
    """Without `confirm` the cursor is stored when convenient, and nobody is told."""
    machines, tick = subscribed()
    machines.give(1, Acknowledge(1, {PUBEND: tick}), link=LINK)
    machines.run(3.0)
    assert not machines.nodes[1].told(AcknowledgementStored)
    assert stored_cursor(machines) == tick
