"""Positions that clients and other brokers bring: none may silence a subscription, and none is kept without bound."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.broker.machines import START_MS, Machine, Machines

from postroad.core.broker.subscribing.durable import DURABLE_KEY, DurableRecord
from postroad.core.broker.subscribing.position_proofs import UNKNOWN_MAX, PositionProofs
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgementStored,
    Knowledge,
    Subscribe,
    Subscribed,
    pubend_id,
)
from postroad.errors import TooManyError

HOME, OTHER, LINK = pubend_id(1), pubend_id(2), 5
FAR = 1 << 62


def record(node: Machine, name: str = "orders") -> DurableRecord:
    return msgspec.msgpack.decode(node.metadata[DURABLE_KEY + name], type=DurableRecord)


def starts(node: Machine) -> dict[int, int]:
    answer = node.told(Subscribed)[-1]
    assert isinstance(answer, Subscribed)
    return answer.starts


def two_brokers() -> Machines:
    machines = Machines()
    machines.start(1)
    machines.start(2)
    machines.link(1, 2)
    machines.run(2.0)
    return machines


def subscribe(
    machines: Machines, *, link: int = LINK, positions: dict[int, int] | None = None, acknowledged: dict[int, int] | None = None
) -> Machine:
    machines.client(1, link)
    packet = Subscribe(1, "x > 1", "orders", positions or {}, acknowledged=acknowledged or {})
    machines.give(1, packet, link=link, request=3)
    machines.run(0.5)
    return machines.nodes[1]


@pytest.mark.parametrize("pubend", [HOME, OTHER])
def test_a_position_beyond_what_a_pubend_announced_moves_no_cursor(pubend: int) -> None:
    """The subscription goes on from the cursor of its home, so nothing is skipped, and the next client loses nothing."""
    machines = two_brokers()
    node = subscribe(machines)
    cursor = starts(node)[pubend]
    machines.leave(1, LINK)
    machines.run(3.0)
    node = subscribe(machines, link=LINK + 1, positions={pubend: FAR}, acknowledged={pubend: FAR})
    assert starts(node)[pubend] == cursor
    machines.give(1, Acknowledge(1, {pubend: FAR}, confirm=True), link=LINK + 1)
    machines.leave(1, LINK + 1)
    machines.run(3.0)
    now = START_MS + int(machines.now * 1000) << 16
    assert cursor <= record(node).cursors[pubend] <= now
    node = subscribe(machines, link=LINK + 2)
    assert starts(node)[pubend] <= now


@pytest.mark.parametrize("pubend", [HOME, OTHER])
def test_a_new_subscription_with_an_impossible_position_gets_what_is_held(pubend: int) -> None:
    """Without a cursor to go back to, it starts at its creation, not in the future."""
    machines = two_brokers()
    node = subscribe(machines, positions={pubend: FAR})
    assert starts(node)[pubend] <= START_MS + int(machines.now * 1000) << 16
    machines.run(3.0)
    assert record(node).cursors[pubend] <= START_MS + int(machines.now * 1000) << 16


def test_a_position_the_broker_has_not_heard_of_yet_is_believed_when_the_pubend_confirms_it() -> None:
    """A client that comes from a broker which had heard more goes on exactly where it was."""
    machines = two_brokers()
    machines.client(1, LINK + 7)
    machines.give(1, Subscribe(1, "x > 1"), link=LINK + 7, request=3)  # so that the interest is active already
    machines.run(2.0)
    machines.loses = (Knowledge,)
    machines.run(2.0)
    ahead = machines.nodes[2].broker._pubends[OTHER].horizon
    assert ahead > machines.nodes[1].broker.streams()[OTHER]["frontier"]
    node = subscribe(machines, positions={OTHER: ahead}, acknowledged={OTHER: ahead})
    assert starts(node)[OTHER] == ahead


def test_a_cursor_beyond_its_pubend_from_another_broker_is_not_believed() -> None:
    """Whatever a former home says of a cursor, the subscription goes on no later than the pubend is."""
    machines = two_brokers()
    broken = DurableRecord("x > 1", 4, {HOME: FAR, OTHER: FAR}, True, START_MS)
    metadata = machines.stop(2)
    metadata[DURABLE_KEY + "orders"] = msgspec.msgpack.encode(broken)
    machines.start(2, metadata, incarnation=2)
    machines.link(1, 2)
    machines.run(2.0)
    node = subscribe(machines)
    machines.run(2.0)
    now = START_MS + int(machines.now * 1000) << 16
    assert all(tick <= now for tick in starts(node).values())
    assert starts(node).keys() == {HOME, OTHER}
    assert all(tick <= now for tick in record(node).cursors.values())


def test_positions_of_pubends_nobody_announced_are_refused_beyond_a_bound() -> None:
    """One request with very many of them is a typed error, and nothing of it is stored or kept."""
    machines = two_brokers()
    machines.client(1, LINK)
    many = {pubend_id(1000 + number): number for number in range(65_536)}
    machines.give(1, Subscribe(1, "x > 1", "orders", many), link=LINK, request=3)
    node = machines.nodes[1]
    assert [type(error) for _, error in node.refused] == [TooManyError]
    assert str(UNKNOWN_MAX) in str(node.refused[0][1])
    assert DURABLE_KEY + "orders" not in node.metadata


def test_too_many_positions_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look took a microsecond, and such a request held up all other clients for 50 ms."""
    machines = two_brokers()
    machines.client(1, LINK)
    looked_at = []
    is_known = PositionProofs._is_known

    def watch(self: PositionProofs, pubend: int) -> bool:
        looked_at.append(pubend)
        return is_known(self, pubend)

    monkeypatch.setattr(PositionProofs, "_is_known", watch)
    many = {pubend_id(1000 + number): number for number in range(65_536)}
    machines.give(1, Subscribe(1, "x > 1", "orders", many), link=LINK, request=3)
    assert [type(error) for _, error in machines.nodes[1].refused] == [TooManyError]
    assert len(looked_at) == UNKNOWN_MAX + 1


def test_few_positions_of_unknown_pubends_are_kept_for_the_connection_and_not_stored() -> None:
    """Word of a pubend may be on its way to this broker still; a broker that starts again must not find what nobody announced."""
    machines = two_brokers()
    node = subscribe(machines, positions={pubend_id(1000 + number): number for number in range(UNKNOWN_MAX)})
    machines.run(2.0)
    assert record(node).cursors.keys() == {HOME, OTHER}


def test_all_unknown_positions_together_are_bounded() -> None:
    """Many subscriptions with unknown positions are refused in the end, and room comes back when they go."""
    machines = two_brokers()
    node = machines.nodes[1]
    for number in range(70):
        machines.client(1, 1000 + number)
        positions = {pubend_id(1000 + each): 1 for each in range(UNKNOWN_MAX)}
        machines.give(1, Subscribe(1, "x > 1", None, positions), link=1000 + number, request=number + 1)
    assert len(node.refused) == 70 - 64
    for number in range(70):
        machines.leave(1, 1000 + number)
    machines.client(1, 2000)
    machines.give(1, Subscribe(1, "x > 1", None, {pubend_id(1000): 1}), link=2000, request=99)
    assert len(node.refused) == 70 - 64


def test_a_record_with_very_many_cursors_can_be_read_again() -> None:
    """What an earlier release stored must not keep a broker from starting."""
    cursors = {pubend_id(1000 + number): number for number in range(70_000)}
    stored = msgspec.msgpack.encode(DurableRecord("x > 1", 1, cursors))
    machines = Machines()
    node = machines.start(1, {DURABLE_KEY + "orders": stored})
    machines.run(2.0)
    assert node.broker._durables.here["orders"].cursors[pubend_id(1000)] == 0


def test_an_acknowledgement_is_stored_while_the_pubends_broker_is_away() -> None:
    """A client that returns while a publisher's broker is down can still acknowledge what it got from there."""
    machines = two_brokers()
    node = subscribe(machines)
    machines.run(8.0)
    position = node.broker.streams()[OTHER]["frontier"]
    machines.leave(1, LINK)
    machines.stop(2)
    machines.run(1.0)
    node = subscribe(machines, link=LINK + 1, positions={OTHER: position}, acknowledged={OTHER: position - 50})
    machines.give(1, Acknowledge(1, {OTHER: position}, confirm=True), link=LINK + 1)
    assert node.told(AcknowledgementStored) == [AcknowledgementStored(1, {OTHER: position})]
    assert record(node).cursors[OTHER] == position
