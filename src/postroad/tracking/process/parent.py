"""Tracking in a process of its own: the event loop says what happened, and shares no interpreter with those who write it down.

What waits, here or there, is bounded: the other side says how much it has taken. A process that ends before its time does not end
the broker: another one is started, after a moment, and the tracks say what they lack. What was published is read from the logs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Final, Self, cast

from postroad.core.protocol.orders import BrokerState, PubendState
from postroad.errors import OverlayError, PostroadError, TooManyError
from postroad.tracking.files.catalog import TrackOptions
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.process.backlog import BACKLOG_BYTES_MAX, Backlog
from postroad.tracking.process.messages import (
    Answer,
    Ask,
    Begin,
    Decoder,
    Durable,
    FromTracker,
    Problem,
    Progress,
    Read,
    ToTracker,
    Want,
    encode,
)
from postroad.tracking.process.recording import Figures, IdLog, logs_freed
from postroad.tracking.process.worker import END_S_MAX, QUESTIONS_MAX, clock_ms
from postroad.tracking.queries.answers import Findings
from postroad.tracking.queries.questions import CoverageQuestion, TracksQuestion
from postroad.tracking.tap.orders import Track, Tracked
from postroad.transport.programs import own_command, own_environment

log = logging.getLogger("postroad.tracking")

RESTART_S: Final = 0.5  # after a process that ended; twice as long after each that ends soon, too
RESTART_S_MAX: Final = 60.0
STEADY_S: Final = 60.0  # a process that lived for so long did not end soon
FAILURES_MAX: Final = 6  # in a row; beyond, the logs are not kept for it any longer
KILL_S: Final = 5.0  # that a process which failed may take to end by itself


class _Life(asyncio.Protocol):
    """One process, and the way to it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        hear: Callable[[_Life, FromTracker], None],
        lost: Callable[[_Life, str], None],
        buffer_bytes: int,
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self.process: Final = process
        self.began_s: Final = self._loop.time()
        self.ended: Final[asyncio.Future[None]] = self._loop.create_future()
        self._hear: Final = hear
        self._lost: Final = lost
        self._buffer_bytes: Final = buffer_bytes
        self._decoder: Final = Decoder(FromTracker)
        self._transport: asyncio.Transport
        self._all_said = False

    @classmethod
    async def start(
        cls, hear: Callable[[_Life, FromTracker], None], lost: Callable[[_Life, str], None], buffer_bytes: int
    ) -> _Life:
        ours, theirs = socket.socketpair()
        command = own_command("postroad.tracking.process.child")
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: ASYNC220, S603  # it takes a millisecond; our own program
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=own_environment()
                )
            ours.setblocking(False)
            life = cls(process, hear, lost, buffer_bytes)
            await life._loop.create_unix_connection(lambda: life, sock=ours)
        except BaseException:
            ours.close()
            raise
        return life

    def say(self, message: ToTracker) -> None:
        if not self.ended.done() and not self._all_said:
            self._transport.writelines(encode(message))

    def say_all(self) -> None:
        """Say that nothing more comes."""
        if not self.ended.done() and not self._all_said:
            self._all_said = True
            self._transport.write_eof()

    def abandon(self) -> None:
        """Say nothing more; the process ends by itself."""
        self._transport.abort()

    def wait(self) -> int:
        """Wait for the end of an abandoned process, and end it if it does not come. Blocks."""
        try:
            return self.process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # which uvloop's does not derive from
        self._transport.set_write_buffer_limits(self._buffer_bytes)

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._hear(self, message)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self._lost(self, str(error or "see above"))


class TrackingProcess:
    """The broker's end. All calls in the event loop."""

    def __init__(
        self,
        begin: Callable[[int], Begin],
        logs: Mapping[int, IdLog],
        report: Callable[[Tracked], None],
        backlog_bytes_max: int,
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._begin: Final = begin  # what is said first, at a time
        self._logs: Final = logs
        self._report: Final = report
        self._backlog: Final = Backlog(backlog_bytes_max)
        self._life: _Life | None = None  # None: nobody tracks at the moment
        self._former = Figures()  # of processes that have ended
        self._figures = Figures()
        self._restarts = 0
        self._failures = 0  # in a row
        self._restarting: asyncio.Task[None] | None = None
        self._finishing = False
        self._numbers: Final = count(1)
        self._asked: dict[int, Future[Findings]] = {}
        self._reads: set[asyncio.Task[None]] = set()
        self.process: subprocess.Popen[bytes]  # the last one that was started

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
        pubends = tuple(PubendState(each.pubend, each.last_tick, each.released) for each in state.pubends)
        known = BrokerState(state.broker, state.incarnation, pubends)

        def begin(started_ms: int) -> Begin:
            return Begin(str(path), known, tuple(sorted(logs)), settings, options, started_ms, title, log_level)

        keeper = cls(begin, logs, report, backlog_bytes_max)
        await keeper._live(clock_ms())
        return keeper

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- what the broker says

    def track(self, order: Track) -> None:
        if self._life is None or self._finishing:
            self._backlog.drop(order)
        elif self._backlog.admit(order):
            self._say_missed(self._life)
            self._life.say(order)

    def _say_missed(self, life: _Life) -> None:
        missed = self._backlog.pop_missed()
        if missed is not None:
            life.say(missed)
            self._report(Tracked((), forgotten=True))

    def search(self, question: TracksQuestion | CoverageQuestion) -> Future[Findings]:
        future: Future[Findings] = Future()
        if self._life is None or self._finishing:
            future.set_exception(OverlayError("tracking is not available at this broker at the moment"))
        elif len(self._asked) >= QUESTIONS_MAX:
            future.set_exception(TooManyError(f"{QUESTIONS_MAX} questions about tracks are waiting already"))
        else:
            number = next(self._numbers)
            self._asked[number] = future
            self._life.say(Ask(number, question))
        return future

    @property
    def backlog_bytes(self) -> int:
        return self._backlog.waiting

    def stats(self) -> dict[str, int]:
        figures = self._former.followed_by(self._figures)
        figures.dropped += self._backlog.missed_entries
        figures.failed = int(self._life is None)
        return {**figures.gauges(), "tracking_backlog_bytes": self.backlog_bytes, "tracking_restarts": self._restarts}

    async def finish(self) -> bool:
        """Say that nothing more comes, and wait for the end of the process for a few seconds."""
        self._stop_restarting()
        life = self._life
        if life is None:
            return False
        life.say_all()
        ended, _ = await asyncio.wait([life.ended, *self._reads], timeout=END_S_MAX)
        if life.ended not in ended:
            log.warning("process %d is still writing the last tracks", self.pid)
            self.abandon()
            return False
        return await asyncio.to_thread(life.process.wait) == 0 and not self._figures.failed

    def abandon(self) -> None:
        """Say nothing more; the process ends by itself."""
        self._stop_restarting()
        if self._life is not None:
            self._life.abandon()

    # --- lives

    async def _live(self, started_ms: int) -> None:
        life = await _Life.start(self._take, self._replace, self._backlog.bytes_max)
        self.process = life.process
        self._life = life
        life.say(self._begin(started_ms))
        if life.ended.done():  # already
            self._replace(life, "at once")

    def _replace(self, life: _Life, reason: str) -> None:
        """Go on without a process that has ended or failed, and start another one after a moment."""
        if life is not self._life:
            return
        self._refuse_all()
        if self._finishing:
            return
        self._life = None
        life.abandon()
        self._former, self._figures = self._former.followed_by(self._figures), Figures()
        steady = self._loop.time() - life.began_s >= STEADY_S
        self._failures = 1 if steady else self._failures + 1
        log.error("the tracking process ended (%s); the broker continues and starts another one", reason)
        self._backlog.start_over(clock_ms())
        self._restarting = self._loop.create_task(self._restart(life))

    async def _restart(self, former: _Life) -> None:
        await asyncio.to_thread(former.wait)
        while True:
            if self._failures > FAILURES_MAX:
                self._report(Tracked(logs_freed(self._logs)))
            await asyncio.sleep(min(RESTART_S * 2 ** (self._failures - 1), RESTART_S_MAX))
            try:
                await self._live(clock_ms())
            except OSError as error:
                log.error("cannot start a tracking process: %s", error)  # noqa: TRY400  # the reason is all there is to say
                self._failures += 1
            else:
                self._restarts += 1
                if self._life is not None:
                    self._say_missed(self._life)
                return

    def _stop_restarting(self) -> None:
        self._finishing = True
        if self._restarting is not None:
            self._restarting.cancel()

    # --- what the process says

    def _take(self, life: _Life, message: FromTracker) -> None:
        if life is not self._life:
            return
        match message:
            case Progress():
                self._backlog.taken, self._figures = message.taken, message.figures
                if message.figures.failed:
                    self._replace(life, "it failed: see above")
            case Durable():
                self._report(Tracked(message.horizons))
            case Answer():
                self._answer(message)
            case Want():
                task = self._loop.create_task(self._read(life, message))
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

    async def _read(self, life: _Life, want: Want) -> None:
        """Read a log for the process, in another thread."""
        try:
            found = await asyncio.to_thread(self._logs[want.pubend].ids, want.lo, want.hi, want.bytes_max)
        except PostroadError as error:
            answer = Read(want.number, problem=Problem.of(error))
        else:
            answer = Read(want.number, found.hi, tuple(ids.tobytes() for ids in found.ids))
        if not self._finishing:
            life.say(answer)

    def _refuse_all(self) -> None:
        while self._asked:
            _, future = self._asked.popitem()
            future.set_exception(OverlayError("tracking failed; see the log of the broker"))
