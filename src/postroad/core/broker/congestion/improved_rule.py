"""The improved rule: rates that are measured instead of searched for, and shared.

The paper's rule learns the direction only and finds the rate by oscillation. An alert says more: how far behind the slowest
broker is. The pubend knows how many messages it had published up to each position of its stream. So from two alerts follows how
many messages the bottleneck *delivered* meanwhile, and from one how many *wait* before it.

- Live brokers: the new rate is what is delivered, corrected so that what waits comes near `QUEUE_S` of it within about `DRAIN_S`.
  With a queue of that length the bottleneck never runs empty. Live brokers alert as long as there is such a queue, so the rate is
  measured anew each second, and a bottleneck that becomes slower is noticed by the next query.
- Recovering brokers: they lack 1 + delta t_rec less their rate, in seconds of the stream per second; the new messages give way
  by `YIELD` of what that is in messages. What they left free is not for new messages: as long as one was heard of within
  `RECOVERING_S`, no alert of a live broker raises the rate. (Its reading comes up to a query later when others alert first.)

After a query without an alert the rate rises by `RISE`, at least by r_min, and twice as fast each time.

Pubends that share a bottleneck have the same wait before it, so that `QUEUE_MESSAGES` more for each makes their rates approach
each other; `even_out` in `feedback` does the same at once for those of one broker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from postroad.core.broker.congestion.consolidation import Alert
from postroad.core.broker.congestion.doubt_meter import DoubtReading
from postroad.core.broker.congestion.pacer import BURST_S, GROUP_MAX
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.settings import MS_PER_S, CongestionSettings

QUEUE_MS_ALERT: Final = 200
QUEUE_S: Final = 0.3
DRAIN_S: Final = 2.0
MEASURED_S: Final = 4.0
CUT_MOST: Final = 0.2  # of what is delivered is published at least
CUT_AT_ONCE: Final = (
    0.25  # of the rate before, at least, whatever live brokers say: one of them may have stood still for a moment
)
YIELD: Final = 0.5
RECOVERING_S: Final = 2.5
RISE: Final = 0.03
RISE_FAR: Final = 0.5
RISE_NEAR: Final = 0.125
QUERIES_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class _Query:
    sequence: int
    at: float
    tick_ms: int  # where the stream was


class ImprovedRule:
    """The rate of one pubend."""

    def __init__(self, settings: CongestionSettings) -> None:
        self._settings = settings
        self.rate: float | None = None
        self._queries: deque[_Query] = deque(maxlen=QUERIES_KEPT)
        self._arrived: deque[tuple[float, float]] = deque()  # (time, messages that the slowest live broker had by then)
        self._slowest = 0  # that broker
        self._alerted = False  # since the last query
        self._unused_since: float | None = None
        self._rise = RISE
        self._usual = 0.0  # the rate before the congestion
        self._recovering_at = float("-inf")  # when a recovering broker was heard of last

    def queried(self, sequence: int, published: PublishedCount, now: float) -> None:
        if len(self._queries) > 1 and not self._alerted:
            before = self._queries[-2]  # its position was reached without a queue, or there would be an alert to the next one
            self._arrived.clear()
            self._arrived.append((before.at + QUEUE_MS_ALERT / MS_PER_S / 2, published.total_until(before.tick_ms)))
            self._raise(published, now)
        self._queries.append(_Query(sequence, now, published.tick_ms))
        self._alerted = False

    def alerted(self, alert: Alert, published: PublishedCount, now: float) -> None:
        self._alerted, self._unused_since, self._rise = True, None, RISE
        before = published.rate if self.rate is None else self.rate
        if not before:
            return  # there is nothing to slow down
        self._usual = before if self.rate is None else self._usual
        wanted = [before]
        if alert.live is not None:
            wanted = [max(self._for_live(alert.live, alert.sequence, published, now), CUT_AT_ONCE * before)]
        if now - self._recovering_at < RECOVERING_S:
            wanted.append(before)
        if alert.recovering is not None:
            self._recovering_at = now
            lacking = max(1 + self._settings.margin_recovering - alert.recovering.rate, 0.0)
            missed = published.density(published.tick_ms - alert.recovering.lag_ms)
            wanted.append(before - YIELD * lacking * missed)
        self.rate = max(min(wanted), self._settings.rate_step)

    def _raise(self, published: PublishedCount, now: float) -> None:
        """Probe for more, or let a pubend go that does not use its rate."""
        if self.rate is None:
            return
        if not published.held_back:
            self._unused_since = now if self._unused_since is None else self._unused_since
            if now - self._unused_since >= self._settings.no_alert_s:
                self.rate, self._rise = None, RISE
            return
        self._unused_since = None
        self.rate += max(self._settings.rate_step, self._rise * self.rate)
        self._rise = min(2 * self._rise, RISE_FAR if 2 * self.rate < self._usual else RISE_NEAR)

    def _for_live(self, alert: DoubtReading, sequence: int, published: PublishedCount, now: float) -> float:
        """Return the rate at which the queue before the slowest live broker gets the length it should have."""
        if alert.broker != self._slowest:
            self._slowest = alert.broker
            while len(self._arrived) > 1:
                self._arrived.pop()
        at, here = self._observe(alert, sequence, published, now)
        arrived = self._arrived
        if arrived and at <= arrived[-1][0]:
            return published.rate if self.rate is None else self.rate  # nothing new
        arrived.append((at, here))
        while len(arrived) > 2 and at - arrived[1][0] >= MEASURED_S:
            arrived.popleft()
        began, before = arrived[0]
        span_s = at - began
        delivered = max(here - before, 0.0) / span_s if span_s > 0 else min(alert.rate, 1.0) * published.rate
        waiting = max(published.total - here - delivered * (now - at), 0.0)
        target = QUEUE_S * delivered + min(GROUP_MAX, BURST_S * delivered)
        return max(delivered - (waiting - target) / DRAIN_S, CUT_MOST * delivered)

    def _observe(self, alert: DoubtReading, sequence: int, published: PublishedCount, now: float) -> tuple[float, float]:
        """Return a time, and how many messages had reached the broker by then.

        A lag of less than the time between two queries is how long the broker waited for the position of the query before.
        """
        before = answered = _Query(sequence, now, published.tick_ms)
        for query in reversed(self._queries):
            if query.sequence < sequence:
                before = query
                break
            answered = query
        if before.sequence < sequence and alert.lag_ms <= answered.tick_ms - before.tick_ms:
            return before.at + alert.lag_ms / MS_PER_S, published.total_until(before.tick_ms)
        return answered.at, published.total_until(answered.tick_ms - alert.lag_ms)
