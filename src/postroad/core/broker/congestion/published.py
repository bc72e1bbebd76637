"""How many messages a pubend published in the last seconds, and whether publishers would have sent more."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from postroad.types import tick_milliseconds

KEPT_S: Final = 600.0  # a recovering broker may be so far behind; beyond it, the oldest is taken
RATE_OVER_S: Final = 1.0


class PublishedCount:
    """Counts messages by the time and the tick at which they were published, sampled at each query."""

    def __init__(self) -> None:
        self._total = 0
        self._samples: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])  # (time, tick, messages until then)
        self.held_back = False  # since the last query, messages had to wait for their rate
        self._was_held_back = False  # between the two queries before
        self._senders: dict[int, None] = {}  # the publishers that sent something since the last query
        self._senders_before: dict[int, None] = {}  # between the two queries before

    def add(self, messages: int) -> None:
        self._total += messages

    def note_sender(self, publisher: int) -> None:
        """Count a publisher that sends something, whether it is published now or held back."""
        self._senders[publisher] = None

    def recent_senders(self) -> list[int]:
        """Return the publishers that sent something in the last seconds."""
        return list(self._senders_before | self._senders)

    @property
    def senders(self) -> int:
        """How many publishers share the rate, about."""
        return max(len(self._senders), len(self._senders_before))

    def sample(self, now: float, tick: int) -> None:
        """Take in how far the stream is at this time."""
        self._samples.append((now, tick, self._total))
        while len(self._samples) > 2 and self._samples[0][0] < now - KEPT_S:
            self._samples.popleft()

    def end_interval(self) -> None:
        """A query was sent."""
        self._was_held_back, self.held_back = self.held_back, False
        self._senders_before, self._senders = self._senders, {}

    @property
    def total(self) -> int:
        """Messages since the broker started."""
        return self._total

    @property
    def is_held_back(self) -> bool:
        """Tell whether publishers use up their rate."""
        return self.held_back or self._was_held_back

    @property
    def tick_ms(self) -> int:
        """The position of the stream at the last query."""
        return tick_milliseconds(self._samples[-1][1])

    @property
    def rate(self) -> float:
        """Messages per second, in about the last second."""
        at, _, total = self._samples[-1]
        for began, _, before in reversed(self._samples):
            if at - began >= RATE_OVER_S * 0.9:
                return (total - before) / (at - began)
        return 0.0

    def total_until(self, tick_ms: int) -> float:
        """Return how many messages the stream had up to a time in it, between two samples in proportion."""
        later, earlier = self._around(tick_ms)
        span_ms = tick_milliseconds(later[1]) - tick_milliseconds(earlier[1])
        part = min(max((tick_ms - tick_milliseconds(earlier[1])) / span_ms, 0.0), 1.0) if span_ms > 0 else 1.0
        return earlier[2] + (later[2] - earlier[2]) * part

    def density(self, tick_ms: int) -> float:
        """Return messages per second of the stream, around a time in it."""
        later, earlier = self._around(tick_ms)
        span_ms = tick_milliseconds(later[1]) - tick_milliseconds(earlier[1])
        return (later[2] - earlier[2]) * 1000 / span_ms if span_ms > 0 else self.rate

    def _around(self, tick_ms: int) -> tuple[tuple[float, int, int], tuple[float, int, int]]:
        """Return the two samples around a time in the stream, or the nearest two."""
        later = self._samples[-1]
        for sample in islice(reversed(self._samples), 1, None):
            if tick_milliseconds(sample[1]) <= tick_ms or sample is self._samples[0]:
                return later, sample
            later = sample
        return later, later
