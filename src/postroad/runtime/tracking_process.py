"""Tracking in a process of its own: the event loop says what happened, and shares no interpreter with those who write it down.

What waits, here or there, is bounded: the other side says how much it has taken. A process that ends before its time ends the
tracking, not the broker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Final, Self, cast

import msgspec

from postroad.core.orders import BrokerState, PubendState, Track, Tracked
from postroad.core.tracking.answers import Findings
from postroad.core.tracking.elements import Horizon
from postroad.core.tracking.questions import CoverageQuestion, TracksQuestion
from postroad.core.tracking.settings import TrackingSettings
from postroad.errors import OverlayError, PostroadError, TooManyError
from postroad.runtime.backlog import BACKLOG_BYTES_MAX, Backlog
from postroad.runtime.process import own_command, own_environment
from postroad.runtime.tracker_wire import (
    Answer,
    Ask,
    Begin,
    Decoder,
    Durable,
    FromTracker,
    Problem,
    Progress,
    Read,
    Want,
    encode,
)
from postroad.runtime.tracking import END_S_MAX, QUESTIONS_MAX, clock_ms
from postroad.runtime.tracks import FOREVER, Figures, IdLog
from postroad.storage.tracks.catalog import TrackOptions

log = logging.getLogger("postroad.tracking")


class TrackingProcess(asyncio.Protocol):
    """The broker's end. All calls in the event loop."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        logs: Mapping[int, IdLog],
        report: Callable[[Tracked], None],
        backlog_bytes_max: int,
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self.process: Final = process
        self._logs: Final = logs
        self._report: Final = report
        self._backlog: Final = Backlog(backlog_bytes_max)
        self._figures = Figures()
        self._dropped = 0  # since it failed
        self._failed = False
        self._finishing = False
        self._gone: Final[asyncio.Future[None]] = self._loop.create_future()
        self._decoder: Final = Decoder(FromTracker)
        self._numbers: Final = count(1)
        self._asked: dict[int, Future[Findings]] = {}
        self._reads: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport

    @classmethod
    async def start(
        cls,
        path: Path,
        state: BrokerState,
        logs: Mapping[int, IdLog],
        settings: TrackingSettings,
        options: TrackOptions,
        report: Callable[[Tracked], None],
        *,
        title: str = "tracker",
        log_level: str = "warning",
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
    ) -> Self:
        """Start a process; it is not waited for."""
        started_ms = clock_ms()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220, S603  # it takes a millisecond; our own program
                own_command("postroad.runtime.tracker"), stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=own_environment()
            )
        ours.setblocking(False)
        keeper = cls(process, logs, report, backlog_bytes_max)
        await keeper._loop.create_unix_connection(lambda: keeper, sock=ours)
        pubends = tuple(PubendState(each.pubend, each.last_tick, each.released) for each in state.pubends)
        known = BrokerState(state.broker, state.incarnation, pubends)
        begin = Begin(str(path), known, tuple(sorted(logs)), settings, options, started_ms, title, log_level)
        keeper._say(encode(begin))
        return keeper

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- what the broker says

    def track(self, order: Track) -> None:
        if self._failed:
            self._dropped += order.entries
            return
        if not self._backlog.admit(order):
            return
        missed = self._backlog.pop_missed()
        if missed is not None:
            self._say(encode(missed))
        self._say(encode(order))

    def search(self, question: TracksQuestion | CoverageQuestion) -> Future[Findings]:
        future: Future[Findings] = Future()
        if self._failed or self._finishing:
            future.set_exception(OverlayError("this broker does not track at the moment"))
        elif len(self._asked) >= QUESTIONS_MAX:
            future.set_exception(TooManyError(f"{QUESTIONS_MAX} questions about tracks wait already"))
        else:
            number = next(self._numbers)
            self._asked[number] = future
            self._say(encode(Ask(number, question)))
        return future

    @property
    def backlog_bytes(self) -> int:
        return self._backlog.waiting

    def stats(self) -> dict[str, int]:
        figures = msgspec.structs.replace(self._figures, failed=int(self._failed), dropped=self._figures.dropped + self._dropped)
        return {**figures.gauges(), "tracking_backlog_bytes": self.backlog_bytes}

    async def finish(self) -> bool:
        """Say that nothing more comes, and wait for the end of the process for a few seconds."""
        self._finishing = True
        if not self._gone.done():
            self._transport.write_eof()
        ended, _ = await asyncio.wait([self._gone, *self._reads], timeout=END_S_MAX)
        if self._gone not in ended:
            log.warning("process %d still writes the last tracks", self.pid)
            self.abandon()
            return False
        await asyncio.to_thread(self.process.wait)
        return not self._failed

    def abandon(self) -> None:
        """Say nothing more; the process ends by itself."""
        self._finishing = True
        self._transport.abort()

    def _say(self, frame: Sequence[bytes | memoryview]) -> None:
        if not self._failed:
            self._transport.writelines(frame)

    # --- what the process says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # which uvloop's does not derive from
        self._transport.set_write_buffer_limits(self._backlog.bytes_max)

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._finishing:
            log.error("the tracking process has ended (%s); the broker goes on without it", error or "see above")
        if not self._failed and (not self._finishing or self._asked):
            self._fail()
        if not self._gone.done():
            self._gone.set_result(None)

    def _take(self, message: FromTracker) -> None:
        match message:
            case Progress():
                self._backlog.taken, self._figures = message.taken, message.figures
                if message.figures.failed and not self._failed:
                    self._fail()
            case Durable():
                self._report(Tracked(message.horizons))
            case Answer():
                self._answer(message)
            case Want():
                task = self._loop.create_task(self._read(message))
                self._reads.add(task)
                task.add_done_callback(self._reads.discard)

    def _answer(self, message: Answer) -> None:
        future = self._asked.pop(message.number)
        if not future.set_running_or_notify_cancel():
            return
        if message.problem is not None:
            future.set_exception(message.problem.error())
            return
        found = message.searched or message.covered
        assert found is not None
        future.set_result(found)

    async def _read(self, want: Want) -> None:
        """Read a log for the process, in another thread."""
        try:
            found = await asyncio.to_thread(self._logs[want.pubend].ids, want.lo, want.hi, want.bytes_max)
        except PostroadError as error:
            answer = Read(want.number, problem=Problem.of(error))
        else:
            answer = Read(want.number, found.hi, tuple(ids.tobytes() for ids in found.ids))
        if not self._finishing:
            self._say(encode(answer))

    def _fail(self) -> None:
        """Give up: free the logs, refuse what waits."""
        self._failed = True
        self._report(Tracked(tuple(Horizon(pubend, FOREVER) for pubend in sorted(self._logs))))
        while self._asked:
            _, future = self._asked.popitem()
            future.set_exception(OverlayError("tracking has failed; see the broker's log"))
