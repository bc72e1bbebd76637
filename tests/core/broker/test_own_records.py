"""A broker whose own records are damaged starts, and keeps safe what they protected."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.broker.test_retired_brokers import run

from postroad.core.broker.context import KNOWN_KEY, BrokerConfig
from postroad.core.broker.holding.release import FLOOR_KEY
from postroad.core.broker.holding.table import HOLD_KEY, HoldRecord
from postroad.core.broker.machine import Broker
from postroad.core.broker.publishing.named_writers import WRITER_KEY
from postroad.core.broker.publishing.pubend import RESERVE_MS
from postroad.core.broker.publishing.publishers import HORIZON_KEY, PUBLISHER_KEY
from postroad.core.broker.subscribing.durable import DURABLE_KEY, HOME_KEY, DurableRecord
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import (
    BrokerState,
    ClientUp,
    LinkUp,
    Notice,
    PubendState,
    Refuse,
    ReleaseLog,
    Send,
    Store,
)
from postroad.core.protocol.packets import (
    DurableHome,
    Hold,
    OpenEpoch,
    OpenPublisher,
    PublisherOpened,
    Subscribe,
    Subscribed,
    pubend_id,
)
from postroad.errors import StaleEpochError

PUBEND, CLIENT, OTHER = pubend_id(1), 5, 9
WALL_MS = 1_000_000
LAST = WALL_MS - 1000 << 16
LOG = PubendState(PUBEND, LAST, publishers=((3, 7),))
NUMBER = (WALL_MS + 5000 << 16).to_bytes(8, "big")
WHOLE = {
    f"{DURABLE_KEY}alice": msgspec.msgpack.encode(DurableRecord("x > 1", 4, {PUBEND: 70})),
    f"{HOME_KEY}bob": msgspec.msgpack.encode(DurableHome("bob", 2, OTHER, settled=True)),
    f"{HOLD_KEY}1": msgspec.msgpack.encode(HoldRecord(1, 1, {PUBEND: 50})),
    f"{HOLD_KEY}{OTHER}": msgspec.msgpack.encode(HoldRecord(1, 1, {PUBEND: 90})),
    FLOOR_KEY: msgspec.msgpack.encode({PUBEND: 50}),
    f"{HORIZON_KEY}{PUBEND}": NUMBER,
    PUBLISHER_KEY: (1 << 16).to_bytes(8, "big"),
    KNOWN_KEY: msgspec.msgpack.encode({OTHER: [pubend_id(OTHER)]}),
    f"{WRITER_KEY}etl": msgspec.msgpack.encode([3, PUBEND, WALL_MS, [[1, 5, None]]]),
}


def start(*damaged: str, **changed: bytes) -> tuple[Broker, list[Output]]:
    """Start a broker, some of whose records are damaged (by key) or hold other bytes."""
    pairs = {key: value for key, value in {**WHOLE, **changed}.items() if key not in damaged}
    state = BrokerState(1, 3, (LOG,), tuple(sorted(pairs.items())), damaged)
    broker = Broker(state, BrokerConfig(subscriber_grace_s=1.0))
    orders = broker.outputs()
    broker.clock(WALL_MS)
    broker.fact(ClientUp(CLIENT), now=0.0)
    return broker, [*orders, *run(broker, until=0.5)]


def alerts(orders: list[Output]) -> list[str]:
    return [order.text for order in orders if isinstance(order, Notice) and order.error]


@pytest.mark.parametrize("key", sorted(WHOLE))
@pytest.mark.parametrize("how", ["checksum", "empty", "text", "cut", "number"])
def test_a_broker_starts_with_any_record_damaged_and_says_so_once(key: str, how: str) -> None:
    """Whether its checksum failed or its bytes mean nothing; one error that names the record."""
    odd = {"empty": b"", "text": b"\xa3foo", "cut": WHOLE[key][:-1], "number": b"\x07"}
    broker, orders = start(key) if how == "checksum" else start(**{key: odd[how]})
    (text,) = alerts(orders)
    assert key in text
    assert broker.stats()["damaged_records"] == 1
    assert not alerts(run(broker, until=3.0))


def test_whole_records_alarm_nobody() -> None:
    """The metadata of these tests are sound."""
    broker, orders = start()
    assert alerts(orders) == []
    assert broker.stats()["damaged_records"] == 0


@pytest.mark.parametrize("cursors", [1, 70_000])
def test_a_durable_record_is_read_without_the_bounds_of_packets(cursors: int) -> None:
    """What was once stored can be read again, however large it is."""
    record = DurableRecord("x > 1", 4, dict.fromkeys(range(cursors), 7))
    _, orders = start(**{f"{DURABLE_KEY}alice": msgspec.msgpack.encode(record)})
    assert alerts(orders) == []


def subscribe(broker: Broker, at: dict[int, int] | None = None) -> tuple[list[Output], list[Subscribed]]:
    """Subscribe as the durable subscription of the records, from a position or without one."""
    packet = Subscribe(1, "x > 1", "alice", positions=at or {}, acknowledged=at or {})
    broker.receive(packet, link=CLIENT, now=0.6, packet=8)
    orders = run(broker, until=1.5)
    return orders, [each.message for each in orders if isinstance(each, Send) and isinstance(each.message, Subscribed)]


def test_a_damaged_cursor_is_neither_skipped_nor_taken_for_a_new_subscription() -> None:
    """It goes on from the oldest position it can have, which is what this broker holds."""
    broker, _ = start(f"{DURABLE_KEY}alice")
    _, (answer,) = subscribe(broker)
    assert answer.starts == {PUBEND: 50}


def test_a_damaged_cursor_without_a_floor_goes_back_to_the_oldest_message() -> None:
    """Nothing is known of where it was."""
    broker, _ = start(f"{DURABLE_KEY}alice", FLOOR_KEY)
    _, (answer,) = subscribe(broker)
    assert answer.starts == {PUBEND: 0}


def test_the_position_a_client_brings_counts_when_the_record_is_damaged() -> None:
    """A client with a position file loses nothing and sees nothing twice; the record is whole again afterwards."""
    broker, _ = start(f"{DURABLE_KEY}alice")
    orders, (answer,) = subscribe(broker, {PUBEND: 75})
    assert answer.starts == {PUBEND: 75}
    stored = dict(change for order in orders if isinstance(order, Store) for change in order.changes)
    value = stored[f"{DURABLE_KEY}alice"]
    assert value is not None
    assert msgspec.msgpack.decode(value, type=DurableRecord).filter == "x > 1"


def test_a_damaged_cursor_holds_the_log_while_its_client_is_away() -> None:
    """Releasing goes by the floor, which is at or below the cursor."""
    broker, orders = start(f"{DURABLE_KEY}alice")
    orders += run(broker, until=6.0)
    assert all(order.tick <= 50 for order in orders if isinstance(order, ReleaseLog))


def released(orders: list[Output]) -> int:
    return max((order.tick for order in orders if isinstance(order, ReleaseLog)), default=0)


def test_nothing_is_released_for_a_damaged_hold_until_a_new_one_is_told() -> None:
    """Then the new one counts, and is stored before it is confirmed."""
    without = {f"{DURABLE_KEY}alice", f"{HOLD_KEY}1", FLOOR_KEY}
    pairs = {key: value for key, value in WHOLE.items() if key not in without}
    damaged = f"{HOLD_KEY}{OTHER}"
    state = BrokerState(1, 3, (LOG,), tuple(each for each in pairs.items() if each[0] != damaged), (damaged,))
    broker = Broker(state, BrokerConfig())
    assert released(run(broker, until=3.0)) == 0
    link = 6

    broker.fact(LinkUp(link, OTHER, 1), now=3.0)
    broker.receive(Hold(1, OTHER, 8, 2, 1, {PUBEND: 95}), link=link, now=3.0)
    orders = broker.outputs()
    stored = [key for order in orders if isinstance(order, Store) for key, _ in order.changes]
    assert damaged in stored
    assert released(orders + run(broker, until=6.0)) == 95


def test_a_damaged_horizon_lets_the_stream_go_on_above_everything_announced() -> None:
    """Silence was announced up to the clock at most, so a little ahead of the clock nothing was."""
    broker, _ = start(f"{HORIZON_KEY}{PUBEND}")
    assert broker.streams()[PUBEND]
    pubend = broker._pubends[PUBEND]
    assert pubend.horizon >= WALL_MS + RESERVE_MS << 16
    assert pubend.reserved >= pubend.horizon


def test_ids_of_new_publishers_are_far_above_those_that_were_seen() -> None:
    """Two publishers with one id would take each other's messages for repetitions."""
    broker, _ = start(PUBLISHER_KEY)
    broker.receive(OpenPublisher(), link=CLIENT, now=0.6, packet=8)
    orders = run(broker, until=1.0)
    (opened,) = [each.message for each in orders if isinstance(each, Send) and isinstance(each.message, PublisherOpened)]
    assert opened.publisher >= 1 << 24


def test_a_damaged_writer_is_refused() -> None:
    """Which of its batches were taken is not known: taking one again could double it."""
    broker, _ = start(f"{WRITER_KEY}etl")
    broker.receive(OpenEpoch("etl", 2), link=CLIENT, now=0.6, packet=8)
    (refused,) = [order for order in run(broker, until=1.0) if isinstance(order, Refuse)]
    assert isinstance(refused.error, StaleEpochError)
    assert "damaged" in str(refused.error)


def test_brokers_are_known_from_other_records_when_their_list_is_damaged() -> None:
    """So a durable name is not taken for new without asking them."""
    broker, _ = start(KNOWN_KEY)
    assert list(broker._context.known) == [OTHER]


def test_a_record_without_a_name_makes_everything_cautious_and_is_dropped_afterwards() -> None:
    """It may have been a horizon, a hold or the count of publishers."""
    broker, orders = start("")
    assert len(alerts(orders)) == 1
    assert broker._pubends[PUBEND].horizon >= WALL_MS + RESERVE_MS << 16
    orders += run(broker, until=3.0)
    changes = [change for order in orders if isinstance(order, Store) for change in order.changes]
    assert ("", None) in changes
    assert changes.index(("", None)) > [key for key, _ in changes].index(f"{HORIZON_KEY}{PUBEND}")
    assert int.from_bytes(dict(changes)[PUBLISHER_KEY] or b"", "big") >= 1 << 24
