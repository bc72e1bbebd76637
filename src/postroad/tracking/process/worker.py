"""The thread that tracks: it is handed orders, and nobody waits for it.

It runs beside the event loop of a broker, or as the work of a tracking process (`child.py`). Orders gather until a
flush and are taken together: a history costs about the same for one id and for ten, and waking the thread for each turn of a
loop would cost the loop more than the tracking itself. It also pauses after each moment of work, for whoever wants the
interpreter or the processor and is more in a hurry. What waits is bounded. Beyond that events are dropped, counted, and a hole
in the tracks says so. Whatever goes wrong here is logged and shown in the figures; messages flow on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from postroad.core.protocol.orders import BrokerState
from postroad.errors import OverlayError, TooManyError
from postroad.tracking.files.catalog import TrackOptions
from postroad.tracking.files.directories import TrackFiles, writer_lock
from postroad.tracking.files.look_up import look_up
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.process.backlog import BACKLOG_BYTES_MAX, Backlog, Missed, order_bytes
from postroad.tracking.process.recording import Figures, IdLog, Tracks, View, logs_freed
from postroad.tracking.queries.answers import Findings
from postroad.tracking.queries.questions import CoverageQuestion, TracksQuestion
from postroad.tracking.tap.orders import Track, Tracked

log = logging.getLogger("postroad.tracking")

GATHER_S: Final = 12.0  # at most: mostly a flush comes before
WORK_S: Final = 0.0004
PAUSE_S: Final = 0.002
UNHURRIED_BYTES_MAX: Final = 8 << 20  # that wait: beyond, the thread makes no pauses
QUESTIONS_MAX: Final = 1024
TAKE_BYTES: Final = 2 << 20  # taken at a time
END_S_MAX: Final = 4.0
WRITER_S_MAX: Final = 30.0  # that the process of a broker that died may take to end

ResultT = TypeVar("ResultT")
Question: TypeAlias = Callable[[TrackStore, View], ResultT]


class TrackKeeper(Protocol):
    """Keeps the tracks of a broker, somewhere beside its event loop."""

    def track(self, order: Track) -> None:
        """Take an order; returns at once, whatever becomes of it."""
        ...

    def search(self, question: TracksQuestion | CoverageQuestion) -> Future[Findings]:
        """Have a question answered; the answer knows everything that was ordered to be tracked before."""
        ...

    @property
    def backlog_bytes(self) -> int: ...

    def stats(self) -> dict[str, int]: ...

    async def finish(self) -> bool:
        """Finish what was ordered, within a few seconds; tell whether it was finished."""
        ...


def clock_ms() -> int:
    """Return what the wall clock shows."""
    return time.time_ns() // 1_000_000


def nothing(_taken: int, _figures: Figures) -> None:
    """Take no notice."""


class Tracking:
    """Owns the tracks of a broker.

    They begin when the broker started, by its clock, not when they could be opened. `report` is called in the thread, with what
    became durable, and `progress`, with the bytes taken so far, after each piece of work. `alone`: this
    is a process of its own, and who started it decides how long the logs wait for another one if it fails.
    """

    def __init__(
        self,
        place: Path | TrackFiles,
        state: BrokerState,
        logs: Mapping[int, IdLog],
        settings: TrackingSettings,
        options: TrackOptions,
        report: Callable[[Tracked], None],
        *,
        started_ms: int | None = None,
        progress: Callable[[int, Figures], None] = nothing,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        alone: bool = False,
    ) -> None:
        self.figures: Final = Figures()
        self.backlog: Final = Backlog(backlog_bytes_max)
        self._gather_bytes: Final = min(TAKE_BYTES, backlog_bytes_max // 2)
        self._alone: Final = alone
        self._place: Final = place
        wall_ms = clock_ms() if started_ms is None else started_ms
        self._open: Final = partial(
            Tracks, place, state, logs, settings, options, wall_ms=wall_ms, figures=self.figures, pause=self._pause
        )
        self._pubends: Final = tuple(logs)
        self._report: Final = report
        self._tell_progress: Final = progress
        self._work: deque[Track | Missed] = deque()
        self._asked: deque[tuple[Question[Any], Future[Any]]] = deque()
        self._wake: Final = threading.Event()
        self._hurry: Final = threading.Event()  # do not gather any longer
        self._stopping = False
        self._resumed = 0.0  # when the thread paused last
        self._thread: Final = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    # --- the event loop's side

    def track(self, order: Track) -> None:
        """Take an order; returns at once, whatever the thread does."""
        if self.figures.failed:
            self.figures.dropped += order.entries
            return
        if self.backlog.admit(order):
            missed = self.backlog.pop_missed()
            if missed is not None:
                self._work.append(missed)
                self._report(Tracked((), forgotten=True))
            self._work.append(order)
            if order.flush or self.backlog.waiting > self._gather_bytes:
                self._hurry.set()
        if not self._wake.is_set():
            self._wake.set()

    def missed(self, missed: Missed) -> None:
        """Take note that events were dropped on their way here."""
        self._work.append(missed)
        self._wake.set()

    def search(self, question: TracksQuestion | CoverageQuestion) -> Future[Findings]:
        return self.ask(lambda store, view: look_up(store, question, view.elements, view.records))

    def ask(self, question: Question[ResultT]) -> Future[ResultT]:
        """Have a question answered in the thread, by the store and what is not on disk yet.

        The answer knows everything that was ordered to be tracked before the question, and what had to be read from the logs.
        """
        future: Future[ResultT] = Future()
        if self._has_failed() or self._stopping:
            future.set_exception(OverlayError("tracking is not available at this broker at the moment"))
        elif len(self._asked) >= QUESTIONS_MAX:
            future.set_exception(TooManyError(f"{QUESTIONS_MAX} questions about tracks are waiting already"))
        else:
            self._asked.append((question, future))
            self._hurry.set()
            self._wake.set()
            if self._has_failed():  # meanwhile
                self._refuse_all()
        return future

    def _has_failed(self) -> bool:
        return self.figures.failed > 0

    @property
    def backlog_bytes(self) -> int:
        return self.backlog.waiting

    def stats(self) -> dict[str, int]:
        return {**self.figures.gauges(), "tracking_backlog_bytes": self.backlog_bytes}

    async def finish(self) -> bool:
        return await asyncio.to_thread(self.close)

    def close(self, wait_s: float = END_S_MAX) -> bool:
        """Finish what was ordered; blocks. Tell whether it was finished."""
        self._stopping = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # --- the thread's side

    def _run(self) -> None:
        try:
            with self._writing():
                self._keep()
        except Exception:
            log.exception("tracking failed; the broker continues without it")
            self._fail()

    def _writing(self) -> AbstractContextManager[None]:
        return writer_lock(self._place, WRITER_S_MAX) if isinstance(self._place, Path) else nullcontext()

    def _keep(self) -> None:
        tracks = self._open()
        while not self._stopping:
            self._gather(tracks)
            self._work_through(tracks)
            if tracks.replaying:
                tracks.replay()
            else:
                self._answer_all(tracks)
            self._progress()
        self._work_through(tracks)
        self._answer_all(tracks)
        self._progress()

    def _progress(self) -> None:
        self._tell_progress(self.backlog.taken, self.figures)

    def _pause(self) -> None:
        """Leave the machine to others after each moment of work, unless somebody waits or too much does."""
        now = time.perf_counter()
        if now - self._resumed < WORK_S:
            return
        if not (self._asked or self._stopping or self.backlog.waiting > UNHURRIED_BYTES_MAX):
            time.sleep(PAUSE_S)
        self._resumed = time.perf_counter()

    def _gather(self, tracks: Tracks) -> None:
        """Wait for work, and a moment longer for more; not at all while a log is replayed, or a question waited for that."""
        if tracks.replaying or self._asked:
            return
        self._wake.wait()
        self._hurry.wait(GATHER_S)
        self._resumed = time.perf_counter()

    def _work_through(self, tracks: Tracks) -> None:
        self._wake.clear()
        self._hurry.clear()
        while self._work:
            orders = self._next_orders()
            if orders:
                if tracks.take(orders):
                    self._report(Tracked(tracks.tracked()))
                self.backlog.taken += sum(map(order_bytes, orders))
                continue
            missed = self._work.popleft()
            assert isinstance(missed, Missed)
            tracks.missed(missed.entries, missed.from_ms, missed.to_ms)

    def _next_orders(self) -> list[Track]:
        """Return the orders that stand first, up to a bound or the next flush."""
        orders: list[Track] = []
        size = 0
        while self._work and size < TAKE_BYTES and isinstance(order := self._work[0], Track):
            self._work.popleft()
            orders.append(order)
            size += order.size
            if order.flush:
                break
        return orders

    def _answer_all(self, tracks: Tracks) -> None:
        for _ in range(len(self._asked)):
            question, future = self._asked.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(question(tracks.store, tracks.view()))
            except Exception as error:  # noqa: BLE001  # it is the asker's
                future.set_exception(error)

    def _fail(self) -> None:
        """Give up: free the logs, refuse what waits."""
        self.figures.failed = 1
        if not self._alone:
            self._report(Tracked(logs_freed(self._pubends)))
        self._refuse_all()
        while self._work:
            self.figures.dropped += self._work.popleft().entries
        self._progress()

    def _refuse_all(self) -> None:
        """Refuse every question; called from both sides, so that none is left behind."""
        with suppress(IndexError):
            while True:
                _, future = self._asked.popleft()
                future.set_exception(OverlayError("tracking failed; see the log of the broker"))
