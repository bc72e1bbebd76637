"""Tracking in a process of its own: what is said arrives, whoever is killed, stopped or slow."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.integration import brokers
from tests.waiting import until

import postroad
from postroad.core.batch.batch import Ids
from postroad.core.protocol.orders import BrokerState, PubendState
from postroad.core.protocol.packets import pubend_id
from postroad.errors import GapError, OverlayError, PostroadError, StorageError, TooManyError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Overlay, Tracking
from postroad.testing import free_ports
from postroad.tracking.files.catalog import TrackOptions
from postroad.tracking.files.directories import writer_lock
from postroad.tracking.histories.elements import HistoryKey, Horizon, Kind, Links, Lost, Span
from postroad.tracking.histories.events import Delivered, Deliveries, Forwarded, Published, Routed, TrackEvent
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.process import parent as process_module
from postroad.tracking.process.backlog import Missed
from postroad.tracking.process.messages import Answer, Ask, Decoder, FromTracker, Problem, Read, ToTracker, encode
from postroad.tracking.process.parent import TrackingProcess
from postroad.tracking.process.recording import FOREVER, PublishedIds
from postroad.tracking.queries.answers import Covered, Hole, HoleKind, Searched
from postroad.tracking.queries.questions import CoverageQuestion, TracksQuestion
from postroad.tracking.queries.search import Hits
from postroad.tracking.tap.orders import Track, Tracked
from postroad.transport.loops import new_event_loop
from postroad.types import MessageId, Tick

WALL_MS = 1_700_000_000_000
PUBEND = pubend_id(1)
SETTINGS = TrackingSettings(persistence_ms=600_000)
ID = np.dtype((np.void, 16))


def ids(first: int, count: int) -> Ids:
    made = [(1).to_bytes(4) + (1).to_bytes(4) + (WALL_MS << 16 | n).to_bytes(8) for n in range(first, first + count)]
    return np.frombuffer(b"".join(made), ID)


class CountedLog:
    """A log in which message n has the tick n."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.reads = 0
        self.error: PostroadError | None = None

    def ids(self, lo: int, hi: int, bytes_max: int) -> PublishedIds:
        self.reads += 1
        if self.error is not None:
            raise self.error
        stop = min(lo + bytes_max // 4096, hi, self.last)
        return PublishedIds(stop if stop < self.last else hi, (ids(lo + 1, stop - lo),))


class World:
    """A directory of tracks, a log, and the lives of the processes that track."""

    def __init__(self, path: Path, last: int = 0) -> None:
        self.path = path
        self.log = CountedLog(last)
        self.incarnation = 0
        self.told: list[Tracked] = []
        self.keepers: list[TrackingProcess] = []

    async def start(self, backlog_bytes_max: int = 64 << 20) -> TrackingProcess:
        self.incarnation += 1
        state = BrokerState(1, self.incarnation, (PubendState(PUBEND, self.log.last),), (("large", bytes(1000)),))
        logs = {PUBEND: self.log}
        keeper = await TrackingProcess.start(
            self.path, state, logs, SETTINGS, TrackOptions(), self.told.append, backlog_bytes_max=backlog_bytes_max
        )
        self.keepers.append(keeper)
        return keeper

    def publish(self, count: int) -> Track:
        self.log.last += count
        return order(Published(PUBEND, ids(self.log.last - count + 1, count)))


def order(*events: TrackEvent, flush: bool = False, farewell: bool = False) -> Track:
    count = sum(len(event.ids) for event in events if isinstance(event, Published | Delivered))
    return Track(WALL_MS, events, count, 16 * count, flush, farewell)


async def found(keeper: TrackingProcess, count: int, kind: Kind) -> set[int]:
    """Return which of the first messages are in histories of a kind."""
    answer = await asyncio.wrap_future(keeper.search(TracksQuestion(ids(1, count).tobytes())))
    assert isinstance(answer, Searched)
    return {row + 1 for row, key, _, _ in answer.hits if key.kind is kind}


def run(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            async with asyncio.timeout(60):
                await scenario(world)
        finally:
            for keeper in world.keepers:
                keeper.abandon()
                await asyncio.to_thread(keeper.process.wait, 20)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(whole())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- what is said --------------------------------------------------------------------------------------------------------------


def test_everything_that_is_said_arrives_as_it_was() -> None:
    """Each kind of event, question and answer, in pieces of any size."""
    some = ids(1, 3)
    events: tuple[TrackEvent, ...] = (
        Published(PUBEND, some),
        Routed(PUBEND, 7, some, np.array([1, 2, 3], np.uint64), (7, 8)),
        Routed(PUBEND, 7, some),
        Forwarded(PUBEND, 9, some),
        Delivered("näme", PUBEND, some),
        Deliveries(("a", "b"), PUBEND, some, *(np.array(each, np.uint32) for each in ([1, 0], [0, 2], [1, 0]))),
        Span("s", 1, PUBEND, "n > 1", 0, FOREVER, 5, 6),
        Lost("s", PUBEND, 1, 2, 3),
        Links(1, (2, 3)),
        Horizon(PUBEND, FOREVER),
    )
    said: list[ToTracker] = [
        Track(WALL_MS, events, 15, 1000, flush=True),
        Missed(1, 2, 3),
        Ask(1, TracksQuestion(bytes(32), "after")),
        Ask(2, CoverageQuestion("s", PUBEND, 9)),
        Read(3, 9, (some.tobytes(),)),
        Read(4, problem=Problem.of(GapError(PUBEND, 1, 2))),
    ]
    assert repr(decoded(ToTracker, said)) == repr(said)
    assert sum(map(len, encode(said[0]))) < 350  # the ids of the nine events travel once
    hits = Hits(
        np.array([0, 2]), (HistoryKey(Kind.PUBLISHER, 1), HistoryKey(Kind.ROUTING, 1, 2)), np.array([0.0, 0.5]), (None, (3,))
    )
    hole = Hole(HoleKind.CRASH, 1, 2, "why")
    span = Span("s", 1, PUBEND, "", 0, 9, 5)
    answers: list[FromTracker] = [
        Answer.of(1, Searched(hits, (hole,), {1: 2}, 3)),
        Answer.of(2, Covered((span,), (), span, None, (hole,))),
        Answer(3, problem=Problem.of(ZeroDivisionError("by zero"))),
    ]
    assert repr(decoded(FromTracker, answers)) == repr(answers)
    assert isinstance(Problem.of(TooManyError("many")).error(), TooManyError)
    assert isinstance(Problem.of(ZeroDivisionError("by zero")).error(), StorageError)


def test_a_message_is_received_whole_or_not_at_all() -> None:
    """However it was cut on its way; a broker that dies in the middle of one said nothing."""
    ours, theirs = socket.socketpair()
    many = Track(WALL_MS, (Published(PUBEND, ids(1, 50_000)),), 50_000)
    data = b"".join(buffer for message in (many, Missed(1, 2, 3), many) for buffer in encode(message))

    def say() -> None:
        with theirs:
            for start in range(0, len(data) - 1, 99_999):
                theirs.sendall(data[start : min(start + 99_999, len(data) - 1)])

    with ours, ThreadPoolExecutor(1) as pool:
        saying = pool.submit(say)
        assert repr(list(Decoder(ToTracker).receive(ours))) == repr([many, Missed(1, 2, 3)])
        saying.result()


def decoded(kinds: object, messages: list[ToTracker] | list[FromTracker]) -> list[object]:
    decoder = Decoder(kinds)
    data = b"".join(buffer for message in messages for buffer in encode(message))
    return [message for start in range(0, len(data), 7) for message in decoder.feed(data[start : start + 7])]


# --- the process ---------------------------------------------------------------------------------------------------------------


def test_what_was_said_before_a_question_is_in_its_answer(tmp_path: Path) -> None:
    """Also what only gathers; and a farewell leaves everything on disk, and no process."""

    async def scenario(world: World) -> None:
        keeper = await world.start()
        keeper.track(world.publish(20))
        keeper.track(order(Delivered("books", PUBEND, ids(1, 20))))
        assert await found(keeper, 30, Kind.SUBSCRIBER) == set(range(1, 21))
        keeper.track(order(Horizon(PUBEND, 20), flush=True, farewell=True))
        assert await keeper.finish()
        assert not alive(keeper.pid)
        assert world.told[-1].horizons == (Horizon(PUBEND, 20),)
        stats = keeper.stats()
        assert (stats["tracking_entries"], stats["tracking_failed"], stats["tracking_backlog_bytes"]) == (40, 0, 0)
        after = await world.start()
        assert await found(after, 30, Kind.PUBLISHER) == set(range(1, 21))
        assert (after.stats()["tracking_holes"], world.log.reads) == (0, 0)
        assert await after.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_the_tracks_begin_with_the_broker_and_not_with_the_process(tmp_path: Path) -> None:
    """What happens while the process is only being started is no hole."""

    async def scenario(world: World) -> None:
        keeper = await world.start()
        early = MessageId(1, 1, Tick(time.time_ns() // 1_000_000 << 16))
        keeper.track(order(Delivered("books", PUBEND, np.frombuffer(bytes(early), ID))))
        answer = await asyncio.wrap_future(keeper.search(TracksQuestion(bytes(early))))
        assert isinstance(answer, Searched)
        assert (len(answer.hits), answer.holes) == (1, ())
        assert await keeper.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_orders_are_taken_with_the_next_flush(tmp_path: Path) -> None:
    """Until then they gather, and are counted among what waits."""

    async def scenario(world: World) -> None:
        keeper = await world.start()
        keeper.track(world.publish(20))
        assert keeper.backlog_bytes > 0
        keeper.track(order(flush=True))
        await until(lambda: keeper.stats()["tracking_entries"] == 20 and keeper.backlog_bytes == 0)
        assert await keeper.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_the_log_is_read_by_the_broker_for_the_process(tmp_path: Path) -> None:
    """Piece by piece; a log that cannot be read leaves the publisher history incomplete, and the process alive."""

    async def scenario(world: World) -> None:
        keeper = await world.start()
        assert await found(keeper, 500, Kind.PUBLISHER) == set(range(1, 501))
        assert world.log.reads == 8
        assert await keeper.finish()
        assert world.told[-1].horizons == (Horizon(PUBEND, 2000),)
        world.log.last, world.log.error = 2100, GapError(PUBEND, 2000, 2100)
        after = await world.start()
        assert await found(after, 500, Kind.PUBLISHER) == set(range(1, 501))
        assert world.log.reads == 9
        after.track(order(Horizon(PUBEND, 2100), flush=True))
        assert await after.finish()
        assert world.told[-1].horizons == (Horizon(PUBEND, 2000),)

    run(World(tmp_path / "tracks", last=2000), scenario)


def test_a_process_that_is_stopped_neither_blocks_the_broker_nor_lets_it_grow(tmp_path: Path) -> None:
    """Events beyond the bound are dropped, and a hole says so; what was published is read from the log."""

    async def scenario(world: World) -> None:
        keeper = await world.start(backlog_bytes_max=200_000)
        assert await found(keeper, 1, Kind.PUBLISHER) == set()
        os.kill(keeper.pid, signal.SIGSTOP)
        try:
            for number in range(400):
                keeper.track(world.publish(100))
                keeper.track(order(Delivered("books", PUBEND, ids(100 * number + 1, 100))))
                assert keeper.backlog_bytes <= 200_000
                await asyncio.sleep(0)
        finally:
            os.kill(keeper.pid, signal.SIGCONT)
        await found(keeper, 1, Kind.PUBLISHER)  # for which all that gathers is taken
        await until(lambda: keeper.backlog_bytes == 0)
        keeper.track(order(Horizon(PUBEND, world.log.last), flush=True))
        assert await found(keeper, 1000, Kind.PUBLISHER) == set(range(1, 1001))
        keeper.track(order(Horizon(PUBEND, world.log.last), flush=True, farewell=True))
        assert await keeper.finish()
        stats = keeper.stats()
        assert (stats["tracking_holes"], stats["tracking_failed"]) == (1, 0)
        assert 60_000 < stats["tracking_dropped"] < 80_000
        assert world.told[-1].horizons == (Horizon(PUBEND, world.log.last),)

    run(World(tmp_path / "tracks"), scenario)


def test_another_process_follows_one_that_was_killed(tmp_path: Path) -> None:
    """What was on disk stays, what was published is read from the log, and a hole says what else may be missing."""

    async def scenario(world: World) -> None:
        keeper = await world.start()
        keeper.track(world.publish(10))
        keeper.track(order(Delivered("books", PUBEND, ids(1, 10)), Horizon(PUBEND, 10), flush=True))
        await until(lambda: world.told[-1:] == [Tracked((Horizon(PUBEND, 10),))])
        keeper.track(world.publish(10))
        keeper.track(order(Delivered("books", PUBEND, ids(11, 10))))
        killed = keeper.pid
        os.kill(killed, signal.SIGSTOP)  # so that it cannot answer first
        waiting = keeper.search(TracksQuestion(bytes(16)))
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(OverlayError, match="failed"):
            await asyncio.wrap_future(waiting)
        keeper.track(world.publish(10))
        with pytest.raises(OverlayError, match="not available"):
            await asyncio.wrap_future(keeper.search(TracksQuestion(bytes(16))))
        stats = keeper.stats()
        assert (stats["tracking_failed"], stats["tracking_dropped"], stats["tracking_restarts"]) == (1, 10, 0)
        await until(lambda: keeper.stats()["tracking_failed"] == 0)
        assert not alive(killed)
        assert world.told[1:] == [Tracked((), forgotten=True)]
        keeper.track(world.publish(10))
        keeper.track(order(Delivered("books", PUBEND, ids(31, 10)), Horizon(PUBEND, 40), flush=True))
        assert await found(keeper, 40, Kind.PUBLISHER) == set(range(1, 41))
        assert await found(keeper, 40, Kind.SUBSCRIBER) == {*range(1, 11), *range(31, 41)}
        keeper.track(order(Horizon(PUBEND, 40), flush=True, farewell=True))
        assert await keeper.finish()
        stats = keeper.stats()
        assert (stats["tracking_dropped"], stats["tracking_restarts"], stats["tracking_failed"]) == (10, 1, 0)
        assert stats["tracking_holes"] == 2
        assert world.told[-1] == Tracked((Horizon(PUBEND, 40),))
        after = await world.start()
        assert await found(after, 40, Kind.PUBLISHER) == set(range(1, 41))
        assert await found(after, 40, Kind.SUBSCRIBER) == {*range(1, 11), *range(31, 41)}
        assert after.stats()["tracking_holes"] == 0
        assert await after.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_a_process_that_ends_while_everything_does_is_noticed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        keeper = await world.start()
        assert await found(keeper, 1, Kind.PUBLISHER) == set()
        os.kill(keeper.pid, signal.SIGSTOP)
        finishing = asyncio.ensure_future(keeper.finish())
        await asyncio.sleep(0.1)
        os.kill(keeper.pid, signal.SIGKILL)
        assert not await finishing

    run(World(tmp_path / "tracks"), scenario)


def test_a_broker_that_ends_waits_for_no_process_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "RESTART_S", 60.0)

    async def scenario(world: World) -> None:
        keeper = await world.start()
        os.kill(keeper.pid, signal.SIGKILL)
        await until(lambda: keeper.stats()["tracking_failed"] == 1)
        assert not await keeper.finish()
        assert not alive(keeper.pid)

    run(World(tmp_path / "tracks"), scenario)


def test_signals_to_the_whole_group_are_left_to_the_broker(tmp_path: Path) -> None:
    """Control-C in a terminal reaches every process of it."""

    async def scenario(world: World) -> None:
        keeper = await world.start()
        keeper.track(world.publish(20))
        assert await found(keeper, 20, Kind.PUBLISHER) == set(range(1, 21))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(keeper.pid, number)
        assert await found(keeper, 20, Kind.PUBLISHER) == set(range(1, 21))
        assert await keeper.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_a_directory_that_cannot_be_used_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by the process, which has nothing else to do then. The logs do not wait for it for ever."""
    monkeypatch.setattr(process_module, "RESTART_S", 0.01)
    monkeypatch.setattr(process_module, "FAILURES_MAX", 1)
    place = tmp_path / "tracks"
    place.write_text("not a directory", encoding="ascii")

    async def scenario(world: World) -> None:
        keeper = await world.start()
        await until(lambda: keeper.stats()["tracking_failed"] == 1)
        assert world.told == []
        await until(lambda: Tracked((Horizon(PUBEND, FOREVER),)) in world.told)
        keeper.track(world.publish(5))
        place.unlink()
        await until(lambda: place.is_dir() and not keeper.stats()["tracking_failed"])
        keeper.track(order(Horizon(PUBEND, 5), flush=True))
        assert await found(keeper, 5, Kind.PUBLISHER) == {1, 2, 3, 4, 5}
        assert await keeper.finish()
        assert not alive(keeper.pid)

    run(World(place), scenario)


def test_questions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of askers is refused with an error that says so."""
    monkeypatch.setattr(process_module, "QUESTIONS_MAX", 3)

    async def scenario(world: World) -> None:
        keeper = await world.start()
        answers = [keeper.search(TracksQuestion(bytes(16))) for _ in range(4)]
        assert isinstance(answers[-1].exception(0), TooManyError)
        await asyncio.gather(*map(asyncio.wrap_future, answers[:-1]))
        assert await keeper.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_the_next_life_waits_for_the_process_of_the_one_before(tmp_path: Path) -> None:
    """A broker may be started again before that has written what it knows."""

    async def scenario(world: World) -> None:
        before = await world.start()
        assert await found(before, 20, Kind.SUBSCRIBER) == set()
        before.track(order(Delivered("books", PUBEND, ids(1, 20))))
        assert await found(before, 20, Kind.SUBSCRIBER) == set(range(1, 21))
        os.kill(before.pid, signal.SIGSTOP)
        try:
            before.abandon()
            after = await world.start()
            answer = asyncio.ensure_future(found(after, 20, Kind.SUBSCRIBER))
            done, _ = await asyncio.wait([answer], timeout=1.0)
            assert not done
        finally:
            os.kill(before.pid, signal.SIGCONT)
        assert await answer == set(range(1, 21))
        assert await after.finish()

    run(World(tmp_path / "tracks"), scenario)


def test_only_one_writes_tracks_in_a_directory(tmp_path: Path) -> None:
    """The next one waits for it, but not for ever."""
    place = tmp_path / "tracks"
    with writer_lock(place, 0.0), pytest.raises(StorageError, match="another process"), writer_lock(place, 0.1):
        pass
    with writer_lock(place, 0.0):
        pass


# --- brokers -------------------------------------------------------------------------------------------------------------------


async def take(subscription: postroad.Subscription, count: int) -> None:
    async for _ in subscription:
        count -= 1
        if not count:
            return


async def talk(url: str, count: int) -> list[MessageId]:
    """Publish, and receive by a durable subscription."""
    async with postroad.connect(url) as client:
        subscription = await client.subscribe(name="books")
        publisher = client.publisher()
        made = [await publisher.publish({}) for _ in range(count)]
        await publisher.flush()
        await take(subscription, count)
        await subscription.ack()
        return made


async def all_published(client: postroad.Client, made: list[MessageId]) -> None:
    """Wait until the origin knows these messages."""
    async with asyncio.timeout(10.0):
        while any(result.published is None for result in await client.trace_many(made)):  # noqa: ASYNC110  # a broker's state
            await asyncio.sleep(0.05)


def test_a_broker_that_is_killed_loses_next_to_nothing_that_was_tracked(tmp_path: Path) -> None:
    """Its tracking process writes what it was told, though T_p is long; the next start waits for that, and reports the rest."""
    (port,) = free_ports(1)
    config = brokers.config(1, "killed", port, tmp_path, [], tracking=Tracking(persistence_ms=600_000))
    with brokers.BrokerProcess(config, tmp_path) as process:
        made = asyncio.run(talk(process.url, 50))

        async def trace() -> None:
            async with postroad.connect(process.url) as client:
                assert len((await client.trace(made[0])).subscribers) == 1

        asyncio.run(trace())  # what was said before it has arrived
        _, tracker = process.pids
        process.kill()
        process.start()

        async def look() -> None:
            async with postroad.connect(process.url) as client:
                for result in await client.trace_many(made):
                    assert [each.subscriber for each in result.subscribers] == ["books"]
                    assert result.holes

        asyncio.run(look())
        assert not alive(tracker)


def test_a_broker_goes_on_without_its_tracking_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages flow, and a trace says what is the matter."""
    monkeypatch.setattr(process_module, "RESTART_S", 60.0)

    async def scenario(_: World) -> None:
        config = NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", overlay=Overlay(silence_s=0.05))
        node = BrokerServer(config, tracking_process=True)
        await node.start()
        await talk(node.url, 10)
        assert isinstance(node.tracking, TrackingProcess)
        os.kill(node.tracking.pid, signal.SIGKILL)
        await until(lambda: node.stats()["tracking_failed"] == 1)
        made = await talk(node.url, 10)
        async with postroad.connect(node.url) as client:
            assert (await client.trace(made[0])).unasked
        await node.stop()

    run(World(tmp_path / "tracks"), scenario)


def test_a_broker_starts_another_tracking_process(tmp_path: Path) -> None:
    """What came in between is known by its origin, with a hole that says what may be missing; what comes later, in full."""
    (port,) = free_ports(1)
    config = brokers.config(1, "killed", port, tmp_path, [], tracking=Tracking(persistence_ms=500))
    with brokers.BrokerProcess(config, tmp_path) as process:
        _, tracker = process.pids

        async def scenario() -> None:
            before = await talk(process.url, 20)
            os.kill(tracker, signal.SIGKILL)
            meanwhile = await talk(process.url, 20)
            await until(lambda: len(process.pids) == 2 and process.pids[1] != tracker)
            await asyncio.sleep(0.5)
            after = await talk(process.url, 20)
            async with postroad.connect(process.url) as client:
                await all_published(client, [*before, *meanwhile, *after])
                assert all(result.holes for result in await client.trace_many([*before, *meanwhile]))
                for result in await client.trace_many(after):
                    assert [each.subscriber for each in result.subscribers] == ["books"]
                    assert not result.unasked

        asyncio.run(scenario())
        assert not alive(tracker)
