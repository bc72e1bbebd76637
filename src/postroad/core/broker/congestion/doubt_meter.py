"""How fast the doubt horizon of one stream moves here, and whether that is congestion (sections 3.1 and 4).

The metric is the doubt horizon rate (11): ticks of the stream per time, in tick seconds per second, so it does not depend on
the rate of publication or on the filters. It is smoothed by the low-pass filter (5). The answer to a query is an alert

- of a live broker when the rate is below 1 - delta t_nonrec (6), or its position further behind the pubend's than
  delta t_s (7; the paper's text has the sign turned);
- of a recovering broker when the rate is below 1 + delta t_rec (8).

Deviations. A sample spans `SPAN_S`, since a stream on which nothing is published moves only when silence is told. A live broker
that has everything up to the position of the query before is not congested, whatever its rate: otherwise every quiet stream
would seem slow.

For the improved rule (`queue_ms_alert`) the lag of a live broker is the time that data waits on the way. Silence up to the
position of each query comes behind all data before it, while the query overtakes them. So the time from the query until its
position is reached is the length of the queue, in time. A live broker then alerts while there is a queue worth naming.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from postroad.core.broker.congestion.settings import MS_PER_S, CongestionSettings
from postroad.types import tick_milliseconds

SAMPLE_S: Final = 0.25
SPAN_S: Final = 1.0
RATE_MAX: Final = 1000.0  # more is the same: the stream was idle


@dataclass(frozen=True, slots=True)
class DoubtReading:
    """What one broker says of one stream: its doubt horizon rate, how far behind it is, and which broker it is."""

    rate: float
    lag_ms: int
    broker: int


class DoubtMeter:
    """Measures one stream at a broker with subscribers."""

    def __init__(self, settings: CongestionSettings, broker: int, queue_ms_alert: int | None = None) -> None:
        self._settings = settings
        self._broker = broker
        self._queue_ms_alert = queue_ms_alert
        self._samples: deque[tuple[float, int]] = deque()  # (time, doubt horizon) of the last `SPAN_S`
        self._recovering = False
        self._position = 0  # of the pubend, in the last query
        self._now = 0.0
        self._queried_at = 0.0
        self._waited_ms: int | None = 0  # from the last query until its position was reached; None: not yet
        self.rate = 1.0  # smoothed

    def sample(self, doubt_horizon: int, *, recovering: bool, now: float) -> None:
        """Take in where the doubt horizon is; its rate at most every `SAMPLE_S`."""
        self._now = now
        if self._waited_ms is None and doubt_horizon >= self._position:
            self._waited_ms = int((now - self._queried_at) * MS_PER_S)
        samples = self._samples
        if samples and now - samples[-1][0] < SAMPLE_S:
            return
        if recovering != self._recovering:
            self._recovering = recovering
            samples.clear()
            self.rate = 1.0
        samples.append((now, doubt_horizon))
        while len(samples) > 2 and now - samples[1][0] >= SPAN_S:
            samples.popleft()
        began, before = samples[0]
        if now - began < SPAN_S:
            return
        moved_ms = tick_milliseconds(doubt_horizon) - tick_milliseconds(before)
        rate = min(max(moved_ms, 0) / (now - began) / MS_PER_S, RATE_MAX)
        self.rate += self._settings.smoothing * (rate - self.rate)

    def forget(self) -> None:
        """Nobody here follows the stream any more."""
        self._samples.clear()
        self.rate, self._position, self._recovering, self._waited_ms = 1.0, 0, False, 0

    def queried(self, position: int, doubt_horizon: int, *, recovering: bool) -> DoubtReading | None:
        """Answer a query of the pubend, which is at `position`: with a reading when this is congestion."""
        settings, before, waited_ms = self._settings, self._position, self._waited_ms
        queried_ms = int((self._now - self._queried_at) * MS_PER_S)
        self._position, self._queried_at = max(position, before), self._now
        is_measured = doubt_horizon < position and self._samples  # without a sample there is no time to measure from
        self._waited_ms = None if is_measured else 0
        lag_ms = max(tick_milliseconds(position) - tick_milliseconds(doubt_horizon), 0)
        if recovering:
            return DoubtReading(self.rate, lag_ms, self._broker) if self.rate < 1 + settings.margin_recovering else None
        if doubt_horizon < before:
            slow = self.rate < 1 - settings.margin_live
            queued = self._queue_ms_alert is not None
            return DoubtReading(self.rate, lag_ms, self._broker) if slow or queued or lag_ms > settings.lag_ms_max else None
        if waited_ms is None:  # it was reached since the last sample
            waited_ms = queried_ms
        if self._queue_ms_alert is None or waited_ms < self._queue_ms_alert:
            return None
        return DoubtReading(self.rate, waited_ms, self._broker)
