"""The rule of the paper (section 3.1): rates change by equations (1), (2) and (3).

- No alert for t_nouca, and the rate is throttled: it rises by r_min, or by f_incr of its distance from the rate of the last
  decrease, whichever is more (1), at each query.
- An alert lowers it, unless it answers a query from before the last decrease, or says that matters improve: to f_decr1 of it,
  but not below r_decr + f_decr2 (r_old - r_decr), so that probing costs little (2). If the rate has not risen since the
  last decrease, f_decr1 alone counts (3).

Where the text is silent: the rate at the first decrease is what was published in the last second; matters improve when no
kind of broker reports a lower rate than in the previous alert; after an increase there is no previous alert; a rate is not
raised while publishers do not use it, and ends when for `no_alert_s` it was not used up. It never falls below r_min.
"""

from __future__ import annotations

from postroad.core.broker.congestion.consolidation import Alert
from postroad.core.broker.congestion.doubt_meter import DoubtReading
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.settings import CongestionSettings


class PaperRule:
    """The rate of one pubend."""

    def __init__(self, settings: CongestionSettings) -> None:
        self._settings = settings
        self.rate: float | None = None
        self._rate_decreased = 0.0  # r_decr
        self._counts_from = 0  # alerts that answer an earlier query do not count
        self._sequence = 0
        self._alerted_at = float("-inf")
        self._unused_since: float | None = None
        self._previous: Alert | None = None

    def queried(self, sequence: int, published: PublishedCount, now: float) -> None:
        self._sequence = sequence
        if self.rate is None or now - self._alerted_at < self._settings.no_alert_s:
            return
        if not published.held_back:
            self._unused_since = now if self._unused_since is None else self._unused_since
            if now - self._unused_since >= self._settings.no_alert_s:
                self.rate, self._rate_decreased = None, 0.0
            return
        self._unused_since, self._previous = None, None
        settings = self._settings
        risen = settings.increase * (self.rate - self._rate_decreased)
        self.rate += max(settings.rate_step, risen)

    def alerted(self, alert: Alert, published: PublishedCount, now: float) -> None:
        self._alerted_at, self._unused_since = now, None
        previous, self._previous = self._previous, alert
        if alert.sequence < self._counts_from or _improves(previous, alert):
            return
        settings, before = self._settings, published.rate if self.rate is None else self.rate
        if not before:
            return  # there is nothing to slow down
        halved = settings.decrease * before
        if before != self._rate_decreased:
            near = self._rate_decreased + settings.decrease_near * (before - self._rate_decreased)
            halved = max(halved, near)
        self.rate = self._rate_decreased = max(halved, settings.rate_step)
        self._counts_from = self._sequence + 1


def _improves(previous: Alert | None, alert: Alert) -> bool:
    """Tell whether the throughput in an alert is larger than in the one before."""
    if previous is None:
        return False
    pairs = ((previous.live, alert.live), (previous.recovering, alert.recovering))
    return all(now is None or _is_larger(before, now) for before, now in pairs)


def _is_larger(before: DoubtReading | None, now: DoubtReading) -> bool:
    return before is not None and now.rate > before.rate
