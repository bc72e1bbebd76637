"""The thread that tracks: the event loop hands it orders and never waits for it.

Orders gather for a moment and are taken together: waking the thread for each turn of the loop would cost the loop more than the
tracking itself. Nor does the thread keep the interpreter for long: it pauses after each moment of work. What waits is bounded.
Beyond that events are dropped, counted, and a hole in the tracks says so. Whatever goes wrong here is logged and shown in the
figures; messages flow on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from postroad.core.orders import BrokerState, Track, Tracked
from postroad.core.tracking.elements import Horizon
from postroad.core.tracking.settings import TrackingSettings
from postroad.errors import OverlayError, TooManyError
from postroad.runtime.tracks import FOREVER, Figures, ReadableLog, Tracks, View
from postroad.storage.tracks.catalog import TrackOptions
from postroad.storage.tracks.files import TrackFiles
from postroad.storage.tracks.store import TrackStore

log = logging.getLogger("postroad.tracking")

GATHER_S: Final = 1.0
WORK_S: Final = 0.0004
PAUSE_S: Final = 0.002
UNHURRIED_BYTES_MAX: Final = 8 << 20  # that wait: beyond, the thread makes no pauses
BACKLOG_BYTES_MAX: Final = 64 << 20
ORDER_BYTES: Final = 128  # what an order costs beside its events
QUESTIONS_MAX: Final = 1024
TAKE_BYTES: Final = 2 << 20  # taken at a time
END_S_MAX: Final = 4.0

ResultT = TypeVar("ResultT")
Question: TypeAlias = Callable[[TrackStore, View], ResultT]


@dataclass(slots=True)
class _Dropped:
    """What was dropped since the backlog overflowed."""

    entries: int
    from_ms: int
    to_ms: int


class Tracking:
    """Owns the tracks of a broker. `report` is called in the thread, with what became durable."""

    def __init__(
        self,
        place: Path | TrackFiles,
        state: BrokerState,
        logs: Mapping[int, ReadableLog],
        settings: TrackingSettings,
        options: TrackOptions,
        report: Callable[[Tracked], None],
        *,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
    ) -> None:
        self._figures: Final = Figures()
        self._open: Final = partial(Tracks, place, state, logs, settings, options, figures=self._figures, pause=self._pause)
        self._pubends: Final = tuple(sorted(logs))
        self._report: Final = report
        self._backlog_bytes_max: Final = backlog_bytes_max
        self._work: deque[Track | _Dropped] = deque()
        self._asked: deque[tuple[Question[Any], Future[Any]]] = deque()
        self._wake: Final = threading.Event()
        self._hurry: Final = threading.Event()  # do not gather any longer
        self._stopping = False
        self._given = 0  # bytes, by the event loop
        self._taken = 0  # bytes, by the thread
        self._resumed = 0.0  # when the thread paused last
        self._dropped: _Dropped | None = None
        self._thread: Final = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    # --- the event loop's side

    def track(self, order: Track) -> None:
        """Take an order; returns at once, whatever the thread does."""
        if self._figures.failed:
            self._figures.dropped += order.entries
            return
        if self.backlog_bytes + order.size + ORDER_BYTES > self._backlog_bytes_max and not order.farewell:
            self._drop(order)
            return
        if self._dropped is not None:
            self._work.append(self._dropped)
            self._dropped = None
        self._given += order.size + ORDER_BYTES
        self._work.append(order)
        if order.flush or self.backlog_bytes > TAKE_BYTES:
            self._hurry.set()
        if not self._wake.is_set():
            self._wake.set()

    def ask(self, question: Question[ResultT]) -> Future[ResultT]:
        """Have a question answered in the thread, by the store and what is not on disk yet.

        The answer knows everything that was ordered to be tracked before the question, and what had to be read from the logs.
        """
        future: Future[ResultT] = Future()
        if self._has_failed() or self._stopping:
            future.set_exception(OverlayError("this broker does not track at the moment"))
        elif len(self._asked) >= QUESTIONS_MAX:
            future.set_exception(TooManyError(f"{QUESTIONS_MAX} questions about tracks wait already"))
        else:
            self._asked.append((question, future))
            self._hurry.set()
            self._wake.set()
            if self._has_failed():  # meanwhile
                self._refuse_all()
        return future

    def _has_failed(self) -> bool:
        return self._figures.failed > 0

    @property
    def backlog_bytes(self) -> int:
        return self._given - self._taken

    def stats(self) -> dict[str, int]:
        return {**self._figures.gauges(), "tracking_backlog_bytes": self.backlog_bytes}

    def close(self) -> bool:
        """Finish what was ordered; blocks for a few seconds at most. Tell whether it was finished."""
        self._stopping = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(END_S_MAX)
        return not self._thread.is_alive()

    def _drop(self, order: Track) -> None:
        if self._dropped is None:
            log.error("tracking is too slow: events are dropped")
            self._dropped = _Dropped(0, order.wall_ms, order.wall_ms)
        self._dropped.entries += order.entries
        self._dropped.to_ms = max(self._dropped.to_ms, order.wall_ms)
        self._wake.set()

    # --- the thread's side

    def _run(self) -> None:
        try:
            tracks = self._open(wall_ms=time.time_ns() // 1_000_000)
            while not self._stopping:
                self._gather(tracks)
                self._work_through(tracks)
                if tracks.replaying:
                    tracks.replay()
                else:
                    self._answer_all(tracks)
            self._work_through(tracks)
            self._answer_all(tracks)
        except Exception:
            log.exception("tracking has failed; the broker goes on without it")
            self._fail()

    def _pause(self) -> None:
        """Leave the interpreter to the event loop after each moment of work, unless somebody waits or too much does."""
        now = time.perf_counter()
        if now - self._resumed < WORK_S:
            return
        if not (self._asked or self._stopping or self.backlog_bytes > UNHURRIED_BYTES_MAX):
            time.sleep(PAUSE_S)
        self._resumed = time.perf_counter()

    def _gather(self, tracks: Tracks) -> None:
        """Wait for work, and a moment longer for more; not at all while a log is replayed."""
        if tracks.replaying:
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
                self._taken += sum(order.size + ORDER_BYTES for order in orders)
                continue
            dropped = self._work.popleft()
            assert isinstance(dropped, _Dropped)
            tracks.missed(dropped.entries, dropped.from_ms, dropped.to_ms)

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
        self._figures.failed = 1
        self._report(Tracked(tuple(Horizon(pubend, FOREVER) for pubend in self._pubends)))
        self._refuse_all()
        while self._work:
            self._figures.dropped += self._work.popleft().entries

    def _refuse_all(self) -> None:
        """Refuse every question; called from both sides, so that none is left behind."""
        with suppress(IndexError):
            while True:
                _, future = self._asked.popleft()
                future.set_exception(OverlayError("tracking has failed; see the broker's log"))
