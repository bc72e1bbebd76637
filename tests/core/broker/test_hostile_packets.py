"""Single packets that once stopped a broker, kept its subscribers waiting, or took its memory."""

from __future__ import annotations

import pytest
from tests.core.broker.machines import START_MS
from tests.core.broker.overlay import Overlay

from postroad.core.broker import machine
from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.subscribing import durable, durable_moves
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.trust import COST_MAX
from postroad.core.protocol.orders import BrokerState, ClientUp, LinkUp, PubendState
from postroad.core.protocol.packets import (
    DurableHome,
    Interest,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    pubend_id,
)
from postroad.errors import DuplicateHandleError, TooManyError

P1 = pubend_id(1)


def test_a_pubend_that_only_a_neighbour_mentions_keeps_no_subscription_waiting() -> None:
    """A neighbour wants a pubend that our own broker or another known one never announced: nobody else waits for it."""
    overlay = Overlay.line(1, 2)
    link = next(iter(overlay.nodes[1].links))
    for pubend in (pubend_id(1, 7), pubend_id(2, 7)):
        overlay.give(1, Interest(pubend, 1 << 32, full=True, add=[""], remove=[]), link=link)
    subscriber = overlay.subscriber(1, "n = 1")
    assert sorted(subscriber.starts) == [P1, pubend_id(2)]


def test_a_neighbour_cannot_make_a_broker_keep_streams_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that nobody announced are bounded; what is announced is taken as before."""
    monkeypatch.setattr(machine, "UNANNOUNCED_MAX", 3)
    overlay = Overlay.line(1, 2)
    node = overlay.nodes[1]
    link = next(iter(node.links))
    for number in range(10):
        overlay.give(1, Interest(pubend_id(70 + number), 1 << 32, full=True, add=[""], remove=[]), link=link)
    assert len(node.broker.streams()) == 2 + 3
    assert {type(error) for _, error in node.refused} <= {TooManyError}
    overlay.start(3)
    overlay.link(3, 2)
    assert pubend_id(3) in node.broker.streams()


def test_a_handle_is_in_use_while_its_name_is_decided() -> None:
    """A second subscription under the handle of one that waits for a vote is refused, and both ends stay possible."""
    overlay = Overlay.line(1, 2)
    overlay.client(1, 9)
    node = overlay.nodes[1]
    overlay.writes_finish = False  # the vote waits for the disk
    overlay.give(1, Subscribe(4, "", "name"), link=9, request=1)
    overlay.give(1, Subscribe(4, "n = 1"), link=9, request=2)
    assert [(request, type(error)) for request, error in node.refused] == [(2, DuplicateHandleError)]
    overlay.writes_finish = True
    overlay.finish_writes()
    overlay.run(0.5)
    assert len(node.told(Subscribed)) == 1
    overlay.give(1, Unsubscribe(4), link=9, request=3)
    assert len(node.told(Unsubscribed)) == 1
    overlay.leave(1, 9)


def test_only_so_many_clients_wait_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for one more durable name than may wait at a time is told so."""
    monkeypatch.setattr(durable_moves, "WAITING_MAX", 2)
    overlay = Overlay.line(1, 2)
    overlay.client(1, 9)
    overlay.writes_finish = False
    for handle in range(4):
        overlay.give(1, Subscribe(handle, "", f"name{handle}"), link=9, request=handle)
    assert [(request, type(error)) for request, error in overlay.nodes[1].refused] == [(2, TooManyError), (3, TooManyError)]


def test_the_names_that_a_broker_knows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """New names are refused; deleted ones are forgotten first, so names can be created and deleted for ever."""
    monkeypatch.setattr(durable, "DURABLES_MAX", 3)
    durables = Durables(1)
    for number in range(10):
        name = f"name{number}"
        assert durables.has_room(name)
        durables.take_home(name, "", {}, created_ms=number)
        durables.settle(name)
        durables.forget(name)
    durables.changes()
    assert sorted(durables.homes) == ["name7", "name8", "name9"]
    for name in ("a", "b", "c"):
        durables.learn(DurableHome(name, 1, 2, settled=True))
    assert sorted(durables.homes) == ["a", "b", "c"]
    assert sorted(key for key, value in durables.changes() if value is None) == ["home/name7", "home/name8", "home/name9"]
    assert not durables.has_room("d")
    assert durables.learn(DurableHome("d", 1, 2, settled=True)) == (None, None)
    assert durables.has_room("a")


def test_what_clients_ask_of_a_broker_that_has_just_started_is_bounded_in_bytes() -> None:
    """Subscriptions with many positions wait for the first ticks; together they take no more than 16 MiB."""
    state = BrokerState(1, 1, (PubendState(P1),))
    broker = machine.Broker(state, BrokerConfig(newcomer_wait_s=5.0, has_neighbours=True))
    broker.clock(START_MS)
    broker.fact(LinkUp(1, 2, 1), now=0.0)
    broker.fact(ClientUp(2), now=0.0)
    positions = {number: number for number in range(60_000)}
    for handle in range(60):
        broker.receive(Subscribe(handle, "", None, positions), link=2, now=0.0, packet=handle)
    assert len(broker._parked) < 4
    assert broker._parked_bytes <= machine.PARKED_BYTES_MAX


@pytest.mark.parametrize("cost", [0, COST_MAX + 1, (1 << 32) - 1])
def test_the_cost_that_a_neighbour_states_for_its_link_is_bounded(cost: int) -> None:
    """Otherwise other brokers would refuse our link state, and we would be cut off from all of them."""
    overlay = Overlay.line(1, 2)
    overlay.nodes[1].broker.fact(LinkUp(9000, 9, 1, cost), now=overlay.now)
    overlay.settle()
    assert not overlay.nodes[2].refused
    record = next(record for record in overlay.nodes[2].broker._router.records() if record.origin == 1)
    assert {broker for broker, _ in record.neighbours} == {2, 9}
