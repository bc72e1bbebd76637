"""Which unknown ticks a recovering broker asks for, and when it asks again (SDCC, section 3.2).

Both windows begin at the doubt horizon. What is unknown within the NACK window is asked for in NACKs of `nack_ms`; each stays
*asked* until its ticks are known, and is asked again when its answer is overdue. The time from asking to knowing is the RTT,
smoothed; a NACK that was repeated gives no sample, as its answer may be that to either. Answers come in the order of the
NACKs, so each answer gives those behind it their full time again: a queue on the way is no reason to ask twice.

Once per round trip the recovery rate r = nwnd / RTT (9) is compared with the rate at the last change: a rise by alpha_NACK opens
the window by one NACK, a fall by beta_NACK closes it by one (10). `DelayedNackWindow` is the other way to size the window: by the
time that answers wait on the way, which is their RTT above the least one seen. It reaches a far or a fast source in some
round trips, where additive steps take minutes, and stops at a bounded queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from postroad.core.broker.congestion.settings import MS_PER_S, CongestionSettings, Rule
from postroad.core.protocol.ranges import RangeSet
from postroad.types import COUNTER_BITS

RTT_GAIN: Final = 0.125  # of a new sample
RTT_AT_FIRST_S: Final = 0.25
TIMEOUT_RTTS: Final = 4.0
TIMEOUT_S_MIN: Final = 1.0
TIMEOUT_S_MAX: Final = 60.0
TRIES_MAX: Final = 7  # for the first unknown tick; then the gap is left to other ways
ASKED_MAX: Final = 256
LAST_TICK: Final = (1 << 64) - 1
QUEUE_S_LEAST: Final = 0.1  # an answer that waits less than this: more may be asked for
QUEUE_S_MOST: Final = 0.4  # longer: less
GROW: Final = 1.25
SHRINK: Final = 0.8
LEAST_S: Final = 30.0  # for which the least round trip counts


@dataclass(slots=True)
class _Asked:
    """A NACK under way: its unknown ticks are those in (lo, hi]."""

    lo: int
    hi: int
    first_at: float
    at: float
    due: float
    tries: int


class NackWindow:
    """The NACK window of one stream."""

    def __init__(self, settings: CongestionSettings) -> None:
        self._settings = settings
        self.size_ms = settings.nack_window_ms
        self.rtt_s = 0.0  # smoothed; 0: none was measured
        self._timeout_s_least = 0.0  # until there is a sample again
        self._asked: list[_Asked] = []  # ascending and disjoint
        self._doubt_horizon = 0
        self._round_until = 0  # the round trip is over when the stream is known up to here
        self._round: list[float] = []  # its samples
        self._rate = 0.0  # at the last change of the window
        self._is_resized = False

    @property
    def asked(self) -> int:
        return len(self._asked)

    def end(self, doubt_horizon: int) -> int:
        """Return the last tick of the window."""
        return doubt_horizon + (self.size_ms << COUNTER_BITS)

    def reach(self, doubt_horizon: int) -> int:
        """Return up to where `known` and `ask` have to be told what is missing."""
        return max(self.end(doubt_horizon), self._asked[-1].hi if self._asked else 0)

    def reset(self) -> None:
        """Nothing is missing any more: the next recovery begins with a small window."""
        self._asked.clear()
        self._round.clear()
        self.size_ms, self._round_until, self._rate = self._settings.nack_window_ms, 0, 0.0

    def forget_asked(self) -> None:
        """Nobody will answer what was asked: the one above is another."""
        self._asked.clear()

    def overflowed(self, tick: int) -> bool:
        """There was no room for what lies after a tick. Ask for less, and for that again when the window comes there.

        Waiting for its answers instead would take the longest timeouts, since they came and were dropped. Return whether the
        window was the smallest already: then what belongs to one NACK does not fit.
        """
        self._asked = [asked for asked in self._asked if asked.hi <= tick]
        is_least = self.size_ms <= self._settings.nack_ms
        self.resize(self.size_ms // 2)
        return is_least

    @property
    def gave_up(self) -> bool:
        """Tell whether the first unknown range was asked for often enough."""
        return bool(self._asked) and self._asked[0].tries > TRIES_MAX

    def known(self, doubt_horizon: int, gaps: Sequence[tuple[int, int]], now: float, *, until: int = LAST_TICK) -> None:
        """Take in what is still unknown up to `until`, in order; the rest of what was asked for is answered."""
        left: list[_Asked] = []
        answered_at = float("inf")  # when what was answered now had been asked for, the first of it
        for asked in self._asked:
            if asked.hi > until:
                left.append(asked)
                continue
            parts = [(max(lo, asked.lo), min(hi, asked.hi)) for lo, hi in gaps if lo < asked.hi and hi > asked.lo]
            left.extend(replace(asked, lo=lo, hi=hi) for lo, hi in parts)
            if parts != [(asked.lo, asked.hi)]:
                answered_at = min(answered_at, asked.at)
            if not parts and asked.tries == 1:
                self._sample(now - asked.at)
            elif not parts:  # which request was answered is not known, but the next ones are to wait that long
                self._timeout_s_least = min(now - asked.first_at, TIMEOUT_S_MAX)
        if doubt_horizon > self._doubt_horizon:
            self._doubt_horizon = doubt_horizon
            for asked in left:
                asked.tries = min(asked.tries, 2)  # not the first: it gives no sample
        for asked in left:
            if asked.at >= answered_at:
                asked.due = max(asked.due, now + self._timeout_s(asked.tries))
        self._asked = left[:ASKED_MAX]
        if self._round_until and doubt_horizon >= self._round_until:
            self._end_round(now)
            self._round_until = 0

    def ask(self, doubt_horizon: int, gaps: Iterable[tuple[int, int]], now: float) -> list[tuple[int, int]]:
        """Return what of the gaps is to be asked for now: within the window, not asked yet or overdue.

        To be called after `known` with the same gaps.
        """
        end, fresh = self.end(doubt_horizon), RangeSet()
        for asked in self._asked:
            fresh.add(asked.lo, asked.hi)
        wanted: list[tuple[int, int]] = []
        for asked in self._asked:
            if now >= asked.due:
                asked.tries += 1
                asked.at, asked.due = now, now + self._timeout_s(asked.tries)
                wanted.append((asked.lo, asked.hi))
        for begin, last in gaps:
            for part in fresh.missing(begin, max(min(last, end), begin)):
                wanted.extend(self._ask_in_steps(part.lo, part.hi, now))
        if not wanted:
            return []
        self._asked.sort(key=lambda asked: asked.lo)
        if not self._round_until:
            self._round_until = max(hi for _, hi in wanted)
        return sorted(wanted)

    # --- inside ---

    def _ask_in_steps(self, lo: int, hi: int, now: float) -> list[tuple[int, int]]:
        """Cut what is asked for the first time into NACKs."""
        step, asked = self._settings.nack_ms << COUNTER_BITS, []
        while lo < hi and len(self._asked) < ASKED_MAX:
            end = min(lo + step, hi)
            self._asked.append(_Asked(lo, end, now, now, now + self._timeout_s(1), 1))
            asked.append((lo, end))
            lo = end
        return asked

    def _timeout_s(self, tries: int) -> float:
        timeout_s = max(TIMEOUT_RTTS * (self.rtt_s or RTT_AT_FIRST_S), TIMEOUT_S_MIN, self._timeout_s_least)
        return min(timeout_s * (1 << tries - 1), TIMEOUT_S_MAX)

    def _sample(self, rtt_s: float) -> None:
        self._timeout_s_least = 0.0
        self.rtt_s = rtt_s if not self.rtt_s else self.rtt_s + RTT_GAIN * (rtt_s - self.rtt_s)
        self._round.append(rtt_s)

    def _end_round(self, now: float) -> None:
        if not self._round:
            return
        rtt_s = max(self._round_trip_s(self._round), 1e-4)
        self._round.clear()
        before = self.size_ms
        self.size_ms = self._bounded(self._next_size(rtt_s, now))
        self._is_resized |= self.size_ms != before

    def _round_trip_s(self, samples: Sequence[float]) -> float:
        """Return the round trip time that counts, of those measured in one round."""
        return sum(samples) / len(samples)

    def resize(self, size_ms: int) -> None:
        """Set the size from outside. The rate to compare with changes in proportion: a fall of that rate is no congestion."""
        before, self.size_ms = self.size_ms, self._bounded(size_ms)
        self._rate *= self.size_ms / before

    def _bounded(self, size_ms: int) -> int:
        return min(max(size_ms, self._settings.nack_ms), self._settings.receive_window_ms)

    def take_resized(self) -> bool:
        """Tell whether the size has changed by a round trip since the last call."""
        was, self._is_resized = self._is_resized, False
        return was

    def _next_size(self, rtt_s: float, now: float) -> int:  # noqa: ARG002 - the other rule needs the time
        """Return the window's new size after a round trip of so long."""
        settings, rate = self._settings, self.size_ms / MS_PER_S / rtt_s
        if rate >= self._rate * (1 + settings.nack_increase):
            self._rate = rate
            return self.size_ms + settings.nack_ms
        if rate <= self._rate * (1 - settings.nack_decrease):
            self._rate = rate
            return self.size_ms - settings.nack_ms
        return self.size_ms


class DelayedNackWindow(NackWindow):
    """Sized by how long answers wait on the way."""

    def __init__(self, settings: CongestionSettings) -> None:
        super().__init__(settings)
        self._least_s = 0.0  # the least round trip since `_least_at`
        self._least_at = 0.0

    def reset(self) -> None:
        super().reset()
        self._least_s = 0.0

    def _round_trip_s(self, samples: Sequence[float]) -> float:
        """The longest: parts without messages, or from a cache, come at once and say nothing of the queue."""
        return max(samples)

    def _next_size(self, rtt_s: float, now: float) -> int:
        if not self._least_s or rtt_s <= self._least_s:
            self._least_s, self._least_at = rtt_s, now
        elif now - self._least_at > LEAST_S:  # it may be another way by now: let the queue drain, and measure anew
            self._least_s = 0.0
            return self.size_ms // 2
        waited_s = rtt_s - self._least_s
        if waited_s < QUEUE_S_LEAST:
            return int(max(self.size_ms * GROW, self.size_ms + self._settings.nack_ms))
        return int(self.size_ms * SHRINK) if waited_s > QUEUE_S_MOST else self.size_ms


def divide_windows(windows: Sequence[tuple[NackWindow, int]]) -> None:
    """Divide what some streams ask for together, in proportion to how far each is behind (in ms)."""
    behind_ms = sum(lag_ms for _, lag_ms in windows)
    total_ms = sum(window.size_ms for window, _ in windows)
    if len(windows) > 1 and behind_ms:
        for window, lag_ms in windows:
            window.resize(total_ms * lag_ms // behind_ms)


def make_nack_window(settings: CongestionSettings) -> NackWindow:
    return DelayedNackWindow(settings) if settings.rule is Rule.IMPROVED else NackWindow(settings)
