"""A simulated broker's tracks: the real tracker, called in place, and a disk that keeps what was synced.

A flush is written as one, after a latency; flushes follow each other. A crash loses the tracker and the flushes under way, but
for some first ones that had become durable. What an incarnation without a farewell leaves is reported as a crash by the next
one, which also adds what the pubends' logs hold beyond the horizons to its publisher history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from postroad.sim.disk import Disk, Log
from postroad.sim.history import Crashed, History, Kept
from postroad.sim.world import World
from postroad.tracking.histories.elements import Crash, Element, Farewell, Flush, Horizon, Links, Lost, Record, Span
from postroad.tracking.histories.events import Published
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.queries.answers import STILL, Covered, Findings, Hole, HoleKind, Searched, covered, ended
from postroad.tracking.queries.questions import CoverageQuestion, TracksQuestion
from postroad.tracking.queries.search import search
from postroad.tracking.tap.orders import Track, Tracked

WRITE_S: Final = 0.002
JITTER_S: Final = 0.004


@dataclass(frozen=True, slots=True)
class _Write:
    """A flush under way; everything that was tracked up to `cut_at` is in it or in those before it."""

    flush: Flush
    wall_ms: int
    cut_at: float


class DurableTracks:
    """What is durable: elements by name, the newest record of each span, the other records in order."""

    def __init__(self) -> None:
        self.elements: dict[tuple[int, int], Element] = {}
        self.spans: dict[tuple[int, int, int], Span] = {}
        self.records: list[Record] = []
        self.horizons: dict[int, int] = {}
        self.written_ms = 0  # the broker's clock at the last flush
        self.incarnation = 0  # the last one, and whether it ended in good order
        self.ended = True

    def write(self, flush: Flush, incarnation: int, wall_ms: int) -> None:
        self.written_ms = wall_ms
        for element in (*flush.closed, *flush.copies):
            self.elements[element.incarnation, element.number] = element
        for record in flush.records:
            match record:
                case Span():
                    self.spans[incarnation, record.number, record.pubend] = record
                case Horizon(pubend, tick):
                    self.horizons[pubend] = max(tick, self.horizons.get(pubend, 0))
                case Farewell():
                    self.ended = True
                case _:
                    self.records.append(record)

    def begin(self, incarnation: int, wall_ms: int) -> Crash | None:
        """Take note of a start; return what the incarnation before may have lost."""
        crash = None if self.ended else Crash(self.incarnation, self.written_ms, wall_ms)
        if crash is not None:
            self.records.append(crash)
        self.incarnation, self.ended, self.written_ms = incarnation, False, wall_ms
        return crash


class BrokerTracks:
    """The tracks of one broker through all its lives."""

    def __init__(self, world: World, history: History, disk: Disk, broker: int, settings: TrackingSettings) -> None:
        self.files = DurableTracks()
        self.settings: Final = settings
        self.tracker: Tracker | None = None
        self._world = world
        self._history = history
        self._disk = disk
        self._broker = broker
        self._chance = world.chance(f"tracks/{broker}")
        self._writes: deque[_Write] = deque()
        self._busy_until = 0.0
        self._life = 0

    # --- a broker's start and end

    def start(self, incarnation: int, wall_ms: int, logs: Mapping[int, Log]) -> None:
        if self.settings.strategy is Strategy.NULL:
            return
        crash = self.files.begin(incarnation, wall_ms)
        if crash is not None:
            self._world.note("tracks", f"broker {self._broker} may lack tracks of incarnation {crash.incarnation}")
        self.tracker = Tracker(self._broker, incarnation, self.settings, wall_ms=wall_ms)
        for pubend, log in logs.items():
            for batch in log.beyond(self.files.horizons.get(pubend, 0)):
                self.tracker.take([Published(pubend, batch.ids().copy())], wall_ms)

    def crash(self) -> None:
        """Lose what was not synced, but for a prefix that was, untold."""
        if self.tracker is None:
            return
        for _ in range(self._chance.randint(0, len(self._writes))):
            self._commit(self._writes.popleft())
        self._history.add(Crashed(self._world.now, self._broker, self.tracker.incarnation))
        self._forget()

    def lose(self) -> None:
        """Be replaced by nothing, while the broker is down."""
        self.files = DurableTracks()

    def stop(self) -> None:
        """Finish what is being written; the broker has said farewell."""
        while self._writes:
            self._commit(self._writes.popleft())
        self._forget()

    def _forget(self) -> None:
        self._life += 1
        self._writes.clear()
        self._busy_until = 0.0
        self.tracker = None

    def open_elements(self) -> tuple[Element, ...]:
        """Return what is only in memory, or under way to the disk."""
        if self.tracker is None:
            return ()
        return (*(element for write in self._writes for element in write.flush.closed), *self.tracker.open_elements())

    # --- orders

    def look_up(self, question: TracksQuestion | CoverageQuestion) -> Findings:
        """Answer a question from everything that is durable, being written or held by the tracker."""
        assert self.tracker is not None
        flushes = [write.flush for write in self._writes]
        records = [*self.files.records, *(r for flush in flushes for r in flush.records), *self.tracker.open_records()]
        holes = tuple(
            Hole(
                HoleKind.CRASH, r.from_ms - self.settings.late_ms, r.to_ms + self.settings.late_ms, f"incarnation {r.incarnation}"
            )
            for r in records
            if isinstance(r, Crash)
        )
        if isinstance(question, CoverageQuestion):
            return self._cover(question, records, holes)
        elements = dict(self.files.elements)
        for flush in flushes:
            elements.update({(e.incarnation, e.number): e for e in (*flush.closed, *flush.copies)})
        elements.update({(e.incarnation, e.number): e for e in self.tracker.open_elements()})
        hits = search(elements.values(), np.frombuffer(question.ids, "V16"))
        neighbours = {broker: STILL for r in records if isinstance(r, Links) for broker in r.neighbours}
        return Searched(hits, holes, neighbours, 0)

    def _cover(self, question: CoverageQuestion, records: Iterable[Record], holes: tuple[Hole, ...]) -> Covered:
        assert self.tracker is not None
        spans = {(incarnation, number): span for (incarnation, number, _), span in self.files.spans.items()}
        spans.update({(self.tracker.incarnation, r.number): r for r in records if isinstance(r, Span)})
        wanted = (question.subscriber, question.pubend)
        crashes = [r for r in records if isinstance(r, Crash)]
        listed = ended(spans, self.tracker.incarnation, crashes)
        ours = [span for span in listed if (span.subscriber, span.pubend) == wanted]
        lost = [
            r
            for r in records
            if isinstance(r, Lost) and (r.subscriber, r.pubend) == wanted and r.from_tick < question.tick <= r.to_tick
        ]
        return covered(ours, lost, question.tick, holes)

    def take(self, order: Track, report: Callable[[Tracked], None]) -> None:
        tracker, world = self.tracker, self._world
        assert tracker is not None
        tracker.take(order.events, order.wall_ms)
        if order.flush or tracker.wants_flush(order.wall_ms):
            self._writes.append(_Write(tracker.flush(order.wall_ms, farewell=order.farewell), order.wall_ms, world.now))
            begun = max(world.now, self._busy_until, self._disk.stalled_until)
            self._busy_until = begun + WRITE_S + JITTER_S * self._chance.random()
            world.at(self._busy_until, self._finish_write, self._life, report)

    def _finish_write(self, life: int, report: Callable[[Tracked], None]) -> None:
        if life != self._life:
            return
        if self._world.now < self._disk.stalled_until:
            self._world.at(self._disk.stalled_until, self._finish_write, life, report)
            return
        self._commit(self._writes.popleft())
        report(Tracked(tuple(Horizon(pubend, tick) for pubend, tick in self.files.horizons.items())))

    def _commit(self, write: _Write) -> None:
        assert self.tracker is not None
        self.files.write(write.flush, self.tracker.incarnation, write.wall_ms)
        self._history.add(Kept(self._world.now, self._broker, self.tracker.incarnation, write.cut_at))
