"""Counts and rates per queue, as this process saw them. Bounded: the queue not touched for longest is forgotten first."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

QUEUES_MAX: Final = 10_000
SAMPLES_MAX: Final = 6


@dataclass(slots=True)
class QueueCounts:
    put_total: int = 0
    taken_total: int = 0
    done_total: int = 0
    samples: deque[tuple[float, int, int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def sample(self, now: float) -> None:
        self.samples.append((now, self.put_total, self.taken_total, self.done_total))

    def per_second(self, now: float) -> tuple[float, float, float]:
        """Rates since the oldest sample, some ten seconds ago."""
        if not self.samples or now <= self.samples[0][0]:
            return (0.0, 0.0, 0.0)
        then, put, taken, done = self.samples[0]
        span = now - then
        return ((self.put_total - put) / span, (self.taken_total - taken) / span, (self.done_total - done) / span)


class Counts:
    """`clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: OrderedDict[int, QueueCounts] = OrderedDict()

    def of(self, queue_id: int) -> QueueCounts:
        counts = self._queues.get(queue_id)
        if counts is None:
            counts = self._queues[queue_id] = QueueCounts()
            counts.sample(self._clock())
            if len(self._queues) > QUEUES_MAX:
                self._queues.popitem(last=False)
        else:
            self._queues.move_to_end(queue_id)
        return counts

    def forget(self, queue_id: int) -> None:
        self._queues.pop(queue_id, None)

    def sample(self) -> None:
        now = self._clock()
        for counts in self._queues.values():
            counts.sample(now)
