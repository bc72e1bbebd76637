"""How fast the doubt horizon of one stream moves here, and whether that is congestion (sections 3.1 and 4).

The metric is the doubt horizon rate (11): ticks of the stream per time, in tick seconds per second, so it does not depend on
the rate of publication or on the filters. It is smoothed by the low-pass filter (5). The answer to a query is an alert

- of a live broker when the rate is below 1 - delta t_nonrec (6), or its position further behind the pubend's than
  delta t_s (7; the paper's text has the sign turned);
- of a recovering broker when the rate is below 1 + delta t_rec (8).

Deviations. A sample spans `SPAN_S`, since a stream on which nothing is published moves only when silence is told. A live broker
that has everything up to the position of the query before is not congested, whatever its rate: otherwise every quiet stream
would seem slow. With `lag_target_ms` a live broker also alerts when it is that far behind (the improved rule).
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

    def __init__(self, settings: CongestionSettings, broker: int, lag_target_ms: int | None = None) -> None:
        self._settings = settings
        self._broker = broker
        self._lag_target_ms = lag_target_ms
        self._samples: deque[tuple[float, int]] = deque()  # (time, doubt horizon) of the last `SPAN_S`
        self._recovering = False
        self._position = 0  # of the pubend, in the last query
        self.rate = 1.0  # smoothed

    def sample(self, doubt_horizon: int, *, recovering: bool, now: float) -> None:
        """Take in where the doubt horizon is; at most every `SAMPLE_S`."""
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
        self.rate, self._position, self._recovering = 1.0, 0, False

    def queried(self, position: int, doubt_horizon: int, *, recovering: bool) -> DoubtReading | None:
        """Answer a query of the pubend, which is at `position`: with a reading when this is congestion."""
        settings, before = self._settings, self._position
        self._position = max(position, before)
        lag_ms = max(tick_milliseconds(position) - tick_milliseconds(doubt_horizon), 0)
        reading = DoubtReading(self.rate, lag_ms, self._broker)
        if recovering:
            return reading if self.rate < 1 + settings.margin_recovering else None
        if doubt_horizon >= before:
            return None
        slow = self.rate < 1 - settings.margin_live
        late = lag_ms > settings.lag_ms_max
        behind = self._lag_target_ms is not None and lag_ms > self._lag_target_ms
        return reading if slow or late or behind else None
