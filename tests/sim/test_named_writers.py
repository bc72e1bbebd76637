"""Batches of named writers, repeated after every kind of failure, in a simulated overlay."""

from __future__ import annotations

import random
from functools import partial

import pytest

from postroad.core.protocol.packets import pubend_id
from postroad.errors import EpochChangedError, StaleEpochError
from postroad.sim.brokers import BrokerNode
from postroad.sim.clients import BatchSeen, ClientNode
from postroad.sim.history import Logged
from postroad.sim.overlay import Overlay
from postroad.tracking.tap.tracked_broker import TrackedConfig
from postroad.types import AttributeValue

PUBEND = pubend_id(1)
Rows = list[tuple[dict[str, AttributeValue], bytes]]


def rows(first: int, count: int) -> Rows:
    return [({"n": n}, f"row {n}".encode()) for n in range(first, first + count)]


def build(seed: int = 1) -> Overlay:
    """One broker, two clients that write at it."""
    overlay = Overlay(seed, config=TrackedConfig(keep_s=3600.0, publish_window_bytes=4000))
    overlay.broker(1)
    overlay.client("writer", 1)
    overlay.client("other", 1)
    return overlay


def logged(overlay: Overlay) -> list[int]:
    """Return the numbers of the rows in the pubend's log, in its order."""
    events = [event for event in overlay.history if isinstance(event, Logged)]
    return [int(str(event.payload.decode().split()[1])) for event in sorted(events, key=lambda event: event.tick)]


def write(overlay: Overlay, epoch: int, content: Rows, client: str = "writer", *, seconds: float = 5.0) -> BatchSeen:
    batch = overlay.clients[client].write("w", epoch, content)
    overlay.run(overlay.world.now + seconds)
    return batch


def test_a_batch_written_again_is_published_once() -> None:
    """Also when it is sealed, and by another client."""
    overlay = build()
    overlay.run(1.0)
    assert write(overlay, 0, rows(0, 100)).sealed
    again = write(overlay, 0, rows(0, 100), "other")
    assert again.sealed
    assert write(overlay, 1, rows(100, 50)).sealed
    assert logged(overlay) == list(range(150))


def test_a_batch_is_completed_by_whoever_repeats_it() -> None:
    """The first attempt dies after some rows; the second sends all of them and only the rest is new."""
    overlay = build()
    overlay.run(1.0)
    overlay.clients["writer"].write("w", 7, rows(0, 300))
    overlay.run(1.02)
    overlay.clients["writer"].crash()
    overlay.run(3.0)
    partly = len(logged(overlay))
    assert write(overlay, 7, rows(0, 300), "other").sealed
    assert partly < 300
    assert logged(overlay) == list(range(300))


def test_two_attempts_side_by_side_do_no_harm() -> None:
    """The one that opened last is heard; what both sent is there once."""
    overlay = build()
    overlay.run(1.0)
    first = overlay.clients["writer"].write("w", 3, rows(0, 400))
    while not logged(overlay):
        overlay.run(overlay.world.now + 0.001)
    second = overlay.clients["other"].write("w", 3, rows(0, 400))
    overlay.run(10.0)
    assert second.sealed
    assert not first.sealed
    assert "another attempt has replaced this one" in str(first.error)
    assert logged(overlay) == list(range(400))


def test_epochs_out_of_order_are_refused_unless_sealed() -> None:
    """What was left of an earlier batch could not be told from a repetition: it is refused, never dropped silently."""
    overlay = build()
    overlay.run(1.0)
    assert write(overlay, 5, rows(0, 20)).sealed
    overlay.clients["writer"].write("w", 6, rows(20, 200))
    overlay.run(overlay.world.now + 0.01)
    overlay.clients["writer"].crash()
    overlay.run(overlay.world.now + 1.0)
    assert write(overlay, 7, rows(1000, 20), "other").sealed
    assert isinstance(write(overlay, 6, rows(20, 200), "other").error, StaleEpochError)
    assert isinstance(write(overlay, 2, rows(0, 1), "other").error, StaleEpochError)
    assert write(overlay, 5, rows(0, 20), "other").sealed  # complete, so there is nothing to do


def test_a_changed_batch_is_refused() -> None:
    """Another number of rows than the first time: what was published stays, and that is said."""
    overlay = build()
    overlay.run(1.0)
    assert write(overlay, 0, rows(0, 20)).sealed
    assert isinstance(write(overlay, 0, rows(0, 21), "other").error, EpochChangedError)
    assert logged(overlay) == list(range(20))


def test_an_empty_batch_is_sealed_too() -> None:
    """Nothing is published, and a repetition with rows is noticed."""
    overlay = build()
    overlay.run(1.0)
    assert write(overlay, 0, []).sealed
    assert isinstance(write(overlay, 0, rows(0, 1), "other").error, EpochChangedError)


@pytest.mark.parametrize("seed", range(8))
def test_every_row_of_every_epoch_is_there_once_whatever_crashes(seed: int) -> None:
    """A driver repeats each epoch until it is sealed, while its clients and the broker crash at random."""
    overlay = build(seed)
    chosen = random.Random(seed)
    overlay.run(1.0)
    clients: list[ClientNode] = [overlay.clients["writer"], overlay.clients["other"]]
    nodes: list[ClientNode | BrokerNode] = [overlay.node(1), *clients]
    for node in nodes * 6:
        when = 1.0 + chosen.random() * 12.0
        overlay.at(when, node.crash)
        overlay.at(when + 0.3 + chosen.random() * 0.5, partial(_start, node))
    total = 0
    for epoch in range(10):
        count = chosen.randrange(1, 120)
        for attempt in range(200):
            client = clients[(epoch + attempt) % 2]
            if client.alive:
                batch = client.write("w", epoch, rows(total, count))
                overlay.run(overlay.world.now + 0.1 + chosen.random())
                if batch.sealed:
                    break
                error = batch.error
                assert error is None or error.retryable or "has taken over" in str(error)
            else:
                overlay.run(overlay.world.now + 0.1)
        else:
            pytest.fail(f"epoch {epoch} was never sealed")
        total += count
    assert logged(overlay) == list(range(total))
    assert overlay.violations() == []


def _start(node: ClientNode | BrokerNode) -> None:
    if not node.alive:
        node.start()
