"""Named writers at one broker machine, with a disk that does as the test says."""

from __future__ import annotations

import numpy as np
import pytest

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.broker.publishing.pubend import id_ticks
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import (
    Append,
    Appended,
    AppendFailed,
    BrokerState,
    ClientUp,
    PubendState,
    Refuse,
    Send,
    Store,
    Stored,
)
from postroad.core.protocol.packets import EpochOpened, OpenEpoch, Packet, PublishColumns, PublishRefused, pubend_id
from postroad.errors import StaleEpochError, StorageFullError, TooManyError
from postroad.types import MessageId, Tick

PUBEND = pubend_id(7)
NOW_MS = 1_800_000_000_000


class Disk:
    """Keeps metadata, and the rows of the log as their ticks of ids."""

    def __init__(self) -> None:
        self.metadata: dict[str, bytes] = {}
        self.rows: list[int] = []


class Driver:
    """One broker machine with two clients on the links 1 and 2."""

    def __init__(
        self, disk: Disk, incarnation: int = 1, publishers: tuple[tuple[int, int], ...] = (), forgotten: int = 0
    ) -> None:
        self.disk = disk
        pubend = PubendState(PUBEND, max(disk.rows, default=0), publishers=publishers, forgotten=forgotten)
        state = BrokerState(7, incarnation, (pubend,), tuple(sorted(disk.metadata.items())))
        self.broker = Broker(state, BrokerConfig())
        self.full = False
        self.sent: dict[int, list[Packet]] = {1: [], 2: []}
        self.refused: list[Exception] = []
        self.broker.clock(NOW_MS)
        for link in (1, 2):
            self.broker.fact(ClientUp(link), now=0.0)
        self.settle()

    def settle(self) -> None:
        """Carry out orders until there are none."""
        while orders := self.broker.outputs():
            for order in orders:
                self._carry_out(order)

    def _carry_out(self, order: Output) -> None:
        match order:
            case Store(token, changes):
                for key, value in changes:
                    if value is None:
                        self.disk.metadata.pop(key, None)
                    else:
                        self.disk.metadata[key] = value
                self.broker.fact(Stored(token), now=0.0)
            case Append(pubend, token, batches) if self.full:
                del batches
                self.broker.fact(AppendFailed(pubend, token, StorageFullError("log", "no room")), now=0.0)
            case Append(pubend, token, batches):
                self.disk.rows += [int(tick) for batch in batches for tick in id_ticks(batch)]
                self.broker.fact(Appended(pubend, token), now=0.0)
            case Send(link, message) if link in self.sent:
                self.sent[link].append(message)
            case Refuse(_, _, error):
                self.refused.append(error)
            case _:
                pass

    def send(self, packet: Packet, batch: Batch | None = None, *, link: int = 1, settle: bool = True) -> None:
        self.broker.receive(packet, link=link, now=0.0, batch=batch, packet=9)
        if settle:
            self.settle()
            self.broker.wake(now=1.0)
            self.settle()

    def open(self, epoch: int, *, name: str = "w", link: int = 1) -> EpochOpened:
        self.send(OpenEpoch(name, epoch), link=link)
        opened = [each for each in self.sent[link] if isinstance(each, EpochOpened)]
        return opened[-1]


def frame(opened: EpochOpened, first: int, count: int) -> Batch:
    ids = b"".join(bytes(MessageId(opened.publisher, opened.broker, Tick(opened.base + n))) for n in range(first, first + count))
    return Batch.from_columns(ids, [b""] * count, {"n": list(range(first, first + count))})


def test_a_base_is_stored_before_it_is_told_and_stays() -> None:
    """The same epoch has the same base and publisher, for another connection and after a restart."""
    disk = Disk()
    driver = Driver(disk)
    driver.broker.receive(OpenEpoch("w", 4), link=1, now=0.0, packet=9)
    before = [each for order in driver.broker.outputs() if isinstance(order, Send) for each in [order.message]]
    assert not any(isinstance(each, EpochOpened) for each in before)
    driver = Driver(disk)
    first = driver.open(4)
    assert driver.open(4, link=2) == first
    again = Driver(disk, incarnation=2).open(4)
    assert (again.publisher, again.base) == (first.publisher, first.base)
    assert first.base >> 16 == NOW_MS


def test_bases_ascend_beyond_everything_accepted() -> None:
    """The next epoch begins above the rows of the last, also when its ids ran ahead of the clock."""
    driver = Driver(Disk())
    first = driver.open(0)
    driver.send(PublishColumns(first.publisher), frame(first, 0, 10))
    second = driver.open(1)
    assert second.base > first.base + 9
    third = driver.open(2)
    assert third.base > second.base


def test_writers_have_publisher_ids_of_their_own() -> None:
    """No two names share one, and no ordinary publisher gets one of theirs."""
    driver = Driver(Disk())
    names = {driver.open(0, name=f"w{i}").publisher for i in range(50)}
    assert len(names) == 50


def test_a_frame_after_a_refused_one_is_not_taken() -> None:
    """The disk was full for one frame: those behind it on the same connection are refused, too, until the batch is opened."""
    driver = Driver(Disk())
    opened = driver.open(0)
    driver.full = True
    driver.send(PublishColumns(opened.publisher), frame(opened, 0, 10))
    driver.full = False
    driver.send(PublishColumns(opened.publisher), frame(opened, 10, 10))
    assert driver.disk.rows == []
    assert any(isinstance(each, PublishRefused) for each in driver.sent[1])
    again = driver.open(0)
    assert again.base == opened.base
    for first in (0, 10):
        driver.send(PublishColumns(again.publisher), frame(again, first, 10))
    assert driver.disk.rows == list(range(again.base, again.base + 20))


def test_an_attempt_that_was_taken_over_is_told_and_not_heard() -> None:
    """Rows that come late on its connection are refused."""
    driver = Driver(Disk())
    old = driver.open(0)
    driver.open(1, link=2)
    driver.send(PublishColumns(old.publisher), frame(old, 0, 5))
    assert driver.disk.rows == []
    assert [each.code for each in driver.sent[1] if isinstance(each, PublishRefused)] == [StaleEpochError.code]


def test_an_epoch_whose_progress_was_forgotten_is_refused() -> None:
    """When too many publishers have come since, nobody knows how far it was: rows could be lost."""
    disk = Disk()
    opened = Driver(disk).open(3)
    driver = Driver(disk, incarnation=2, forgotten=opened.base + 5)
    driver.send(OpenEpoch("w", 3))
    assert [type(error) for error in driver.refused] == [StaleEpochError]
    assert driver.open(4).base > opened.base + 5


def test_the_number_of_writers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a new name is refused, unless one was not used for long: that one is forgotten."""
    monkeypatch.setattr("postroad.core.broker.publishing.named_writers.WRITERS_MAX", 3)
    disk = Disk()
    driver = Driver(disk)
    for i in range(3):
        driver.open(0, name=f"w{i}")
    driver.send(OpenEpoch("one more", 0))
    assert [type(error) for error in driver.refused] == [TooManyError]
    driver.broker.clock(NOW_MS + 2 * 86_400_000)
    driver.open(0, name="one more")
    assert len([key for key in disk.metadata if key.startswith("writer/")]) == 3


def test_ids_are_those_the_base_gives() -> None:
    """What the broker logs is exactly base, base + 1, and so on."""
    driver = Driver(Disk())
    opened = driver.open(0)
    batch = frame(opened, 0, 100)
    driver.send(PublishColumns(opened.publisher), batch)
    assert np.array_equal(np.array(driver.disk.rows), opened.base + np.arange(100))
