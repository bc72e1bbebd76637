"""The improved rule: steps as large as the congestion is, rates that are measured instead of searched for.

The paper's rule learns the direction only and finds the rate by oscillation. An alert says more: the doubt horizon rate of
the slowest broker and its lag. The rate of the stream where that broker is now, times its doubt horizon rate, is what the
bottleneck *delivers* in messages per second. So a rate follows from one alert:

- Live brokers: the delivered rate, less what makes the queue drain to `LAG_TARGET_MS` within about `DRAIN_S`. At that lag the
  bottleneck never runs empty, and its queue stays short. Live brokers alert from that lag on.
- Recovering brokers: they lack 1 + delta t_rec less their rate, in seconds of the stream per second; the new messages give way
  by `YIELD` of what that is in messages.

Without an alert the rate rises by `RISE` at each query, at least by r_min, and twice as fast each time.
Decreases are multiplicative and the least increase is the same for all, so pubends that share a bottleneck approach each other;
`even_out` in `feedback` does the same at once for those of one broker.
"""

from __future__ import annotations

from typing import Final

from postroad.core.broker.congestion.consolidation import Alert
from postroad.core.broker.congestion.doubt_meter import DoubtReading
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.settings import MS_PER_S, CongestionSettings

LAG_TARGET_MS: Final = 400
DRAIN_S: Final = 3.0
CUT_MOST: Final = 0.5  # of a rate, by one alert
YIELD: Final = 0.5
RISE: Final = 0.02
RISE_MAX: Final = 0.25


class ImprovedRule:
    """The rate of one pubend."""

    def __init__(self, settings: CongestionSettings) -> None:
        self._settings = settings
        self.rate: float | None = None
        self._alerted_at = float("-inf")
        self._unused_since: float | None = None
        self._rise = RISE
        self._densest = 0.0  # the rate before the first decrease: what the missed past holds

    def queried(self, sequence: int, published: PublishedCount, now: float) -> None:  # noqa: ARG002 - part of the interface
        if self.rate is None or now - self._alerted_at < self._settings.no_alert_s:
            return
        if not published.held_back:
            self._unused_since = now if self._unused_since is None else self._unused_since
            if now - self._unused_since >= self._settings.no_alert_s:
                self.rate = None
            return
        self._unused_since = None
        self.rate += max(self._settings.rate_step, self._rise * self.rate)
        self._rise = min(2 * self._rise, RISE_MAX)

    def alerted(self, alert: Alert, published: PublishedCount, now: float) -> None:
        self._alerted_at, self._unused_since, self._rise = now, None, RISE
        if self.rate is None:
            self._densest = published.rate
        before = published.rate if self.rate is None else self.rate
        wanted = [before]
        if alert.live is not None:
            wanted.append(self._for_live(alert.live, published))
        if alert.recovering is not None:
            lacking = 1 + self._settings.margin_recovering - alert.recovering.rate
            wanted.append(before - YIELD * max(lacking, 0.0) * self._densest)
        least = max(CUT_MOST * before, self._settings.rate_step)
        self.rate = max(min(wanted), least)

    def _for_live(self, reading: DoubtReading, published: PublishedCount) -> float:
        delivered = reading.rate * published.density(published.tick_ms - reading.lag_ms)
        excess_s = (reading.lag_ms - LAG_TARGET_MS) / MS_PER_S
        return delivered * (1 - max(excess_s, -LAG_TARGET_MS / MS_PER_S) / DRAIN_S)
