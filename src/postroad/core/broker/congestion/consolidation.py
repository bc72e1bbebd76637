"""Alerts of the brokers below become one for the broker above (Fig. 5).

An alert with a new sequence number is passed on at once, so that the pubend hears of new congestion without delay. Those that
follow with the same number count in the next one. A broker with subscribers of its own treats its own reading as one of a child.

Kept beside the minimum: the lag and the number of the broker it belongs to, so that a publisher can be told who slows it down.
One deviation: what has waited longer than for the next query is left out, since its broker may have gone meanwhile.
Sequence numbers hold the incarnation of the pubend's broker in the upper bits, so they also rise over restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from postroad.core.broker.congestion.doubt_meter import DoubtReading


@dataclass(frozen=True, slots=True)
class Alert:
    """The slowest live and the slowest recovering broker, None where there is none; `sequence` names the query."""

    sequence: int
    live: DoubtReading | None
    recovering: DoubtReading | None


class Consolidation:
    """The alerts of one pubend at one broker."""

    def __init__(self) -> None:
        self._sequence = 0
        self._live: DoubtReading | None = None  # what has waited since the alert that was passed on last
        self._recovering: DoubtReading | None = None

    def take(self, alert: Alert) -> Alert | None:
        """Take an alert in; return what is to be passed on now, if anything."""
        if alert.sequence > self._sequence + 1:
            self._live = self._recovering = None
        self._live = slower(self._live, alert.live)
        self._recovering = slower(self._recovering, alert.recovering)
        if alert.sequence <= self._sequence:
            return None
        self._sequence = alert.sequence
        passed = Alert(alert.sequence, self._live, self._recovering)
        self._live = self._recovering = None
        return passed


def slower(one: DoubtReading | None, other: DoubtReading | None) -> DoubtReading | None:
    """Return the reading with the lower rate; of equal ones the one that is further behind."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other, key=lambda reading: (reading.rate, -reading.lag_ms, reading.broker))
