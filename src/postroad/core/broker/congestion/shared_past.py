"""Which part of the past is asked for, for which subscriptions together, and when the next part may follow.

Subscribers that return bring old positions, each its own. If each asked for itself, a link would carry the same past once for
each of them, and all at once. So under congestion control the subscriptions of one stream whose positions are no further apart
than the receive window form a *cluster*:

- A cluster asks for one piece at a time, from the lowest position on, with a filter that is the union of those in it. Who is
  ahead waits until the cluster has reached it. What several filters match comes once.
- A piece has as many bytes as the window: like the NACK window of the improved rule (see `nack_window`) it grows while answers
  do not wait on the way and shrinks when they wait long. It also grows while an answer is not much larger than the request for
  it. It is counted in bytes, since a subscriber may have been away for days of a stream in which little is published. The paper
  has no such subscribers; both rules use this window.
- Not more than `CLUSTERS_AT_ONCE` clusters of a stream ask at a time. The others have their turn when one of them is done.

Invariant: an answer is used only for a subscription whose filter is part of the request and whose position lies in the answer.
Then it is correct for it whenever it comes, so a late answer is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from postroad.core.broker.congestion.nack_window import (
    GROW,
    QUEUE_S_LEAST,
    QUEUE_S_MOST,
    RTT_GAIN,
    SHRINK,
    TIMEOUT_RTTS,
    TIMEOUT_S_MAX,
)
from postroad.core.broker.congestion.settings import CongestionSettings
from postroad.core.filters.filter import Filter
from postroad.types import COUNTER_BITS

CLUSTERS_AT_ONCE: Final = 4
TIMEOUT_S_LEAST: Final = 1.0
FIRST_BYTES: Final = 4 << 10  # of the rows of a piece
LEAST_BYTES: Final = 1 << 10
MOST_BYTES: Final = 1 << 20
CHARACTERS_MAX: Final = 16_000  # of a union, so that it has fewer tokens than a filter may have
WORTHWHILE: Final = 4  # times the request, at least, should an answer be
WORTHWHILE_S_MAX: Final = 1.5  # if it takes no longer than this
COMPARED_MAX: Final = 8  # filters of a union with which another one is compared


@dataclass(slots=True)
class PieceOfPast:
    """A request under way, and the subscriptions of its cluster, also those whose filters are not in it."""

    first: int  # positions of the cluster
    last: int
    size: int  # in bytes
    members: list[int]
    at: float
    due: float
    tries: int
    asked_bytes: int  # the length of the request
    answered_bytes: int = 0  # of what has come so far


class SharedPast:
    """What the subscriptions of one stream at one broker have asked for."""

    def __init__(self, settings: CongestionSettings) -> None:
        self._span = settings.receive_window_ms << COUNTER_BITS
        self.window_bytes = FIRST_BYTES
        self._rtt_s = 0.0  # smoothed; 0: not measured
        self._rtt_s_least = 0.0
        self._asked: list[PieceOfPast] = []

    def near(self, position: int, now: float) -> PieceOfPast | None:
        """Return the request under way of the cluster that a position belongs to."""
        for piece in self._asked:
            if now < piece.due and piece.first - self._span <= position <= piece.last + self._span:
                return piece
        return None

    def next_turn(self, now: float) -> float | None:
        """Return when another cluster may ask, None for now."""
        under_way = [piece.due for piece in self._asked if now < piece.due]
        return min(under_way) if len(under_way) >= CLUSTERS_AT_ONCE else None

    def cluster(self, positions: Sequence[int], around: int) -> tuple[int, int]:
        """Return the first and the last position of the cluster around one of these positions."""
        first = last = around
        for position in sorted((each for each in positions if each < around), reverse=True):
            if first - position > self._span:
                break
            first = position
        for position in sorted(each for each in positions if each > around):
            if position - last > self._span:
                break
            last = position
        return first, last

    def ask(self, first: int, last: int, members: list[int], tries: int, asked_bytes: int, now: float) -> PieceOfPast:
        """Begin a request of a cluster, of as many bytes as the window allows."""
        due = now + self._timeout_s(tries)
        piece = PieceOfPast(first, last, self.window_bytes, members, now, due, tries, asked_bytes)
        self._asked = [each for each in self._asked if now < each.due]
        self._asked.append(piece)
        return piece

    def answered(self, piece: PieceOfPast, now: float) -> None:
        """Take note that the answer has come completely; resize the window."""
        self._asked = [each for each in self._asked if each is not piece]
        if piece.tries > 1:
            return  # which request was answered is not known
        rtt_s = now - piece.at
        self._rtt_s = rtt_s if not self._rtt_s else self._rtt_s + RTT_GAIN * (rtt_s - self._rtt_s)
        self._rtt_s_least = min(self._rtt_s_least or rtt_s, rtt_s)
        waited_s = rtt_s - self._rtt_s_least
        is_small = piece.answered_bytes < WORTHWHILE * piece.asked_bytes and rtt_s < WORTHWHILE_S_MAX
        window = self.window_bytes
        if waited_s < QUEUE_S_LEAST or is_small:
            window = int(window * GROW)
        elif waited_s > QUEUE_S_MOST:
            window = int(window * SHRINK)
        self.window_bytes = min(max(window, LEAST_BYTES), MOST_BYTES)

    def _timeout_s(self, tries: int) -> float:
        timeout_s = max(TIMEOUT_RTTS * self._rtt_s, TIMEOUT_S_LEAST)
        return float(min(timeout_s * 2 ** min(tries - 1, 6), TIMEOUT_S_MAX))


def union(filters: Sequence[Filter], parse: Callable[[str], Filter]) -> tuple[Filter, int]:
    """Return a filter for what any of these match, and how many of them it holds: the first ones, at least one.

    `parse` makes a filter of a text. Filters that an earlier one covers add nothing.
    """
    kept: dict[Filter, str] = {}
    characters = 0
    for taken, each in enumerate(filters):
        if each in kept or any(other.covers(each) for other in list(kept)[:COMPARED_MAX]):
            continue
        text = str(each)
        if not text:
            return each, len(filters)  # it matches everything
        if kept and characters + len(text) > CHARACTERS_MAX:
            return _join(kept, parse), taken
        kept[each] = text
        characters += len(text) + len(" OR ")
    return _join(kept, parse), len(filters)


def _join(kept: dict[Filter, str], parse: Callable[[str], Filter]) -> Filter:
    return next(iter(kept)) if len(kept) == 1 else parse(" OR ".join(kept.values()))  # nothing binds more loosely than OR
