"""Numbers about many numbers: percentiles from counts, peaks over sliding windows, trends. For jobs and for experiments.

Everything here can be fed in pieces and keeps a bounded state, so the same code serves a list in memory and a stream of years.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np

Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
STEP_MS: Final = 100
WINDOWS_S: Final = (1, 10, 60)
_STEPS_PER_S: Final = 1000 // STEP_MS
_MINUTE: Final = 60 * _STEPS_PER_S
_DAY_MINUTES: Final = 1440


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values with how often each occurs; values ascend."""

    values: Floats
    counts: Longs

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        found, counts = np.unique(
            np.asarray(list(values) if not isinstance(values, np.ndarray) else values, float), return_counts=True
        )
        return cls(found, counts.astype(np.int64))

    @classmethod
    def of_counts(cls, counts: Mapping[float, int] | Sequence[tuple[float, int]]) -> Self:
        pairs = sorted(counts.items() if isinstance(counts, Mapping) else counts)
        values = np.array([value for value, _ in pairs], float)
        found, place = np.unique(values, return_inverse=True)
        totals = np.bincount(place, [count for _, count in pairs], len(found)) if pairs else np.zeros(0)
        return cls(found, totals.astype(np.int64))

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return float((self.values * self.counts).sum() / self.total) if self.total else float("nan")

    def percentile(self, percent: float) -> float:
        """Return the smallest value that at least so many percent do not exceed; not a number when there is none."""
        if not self.total:
            return float("nan")
        wanted = max(1, int(np.ceil(percent / 100 * self.total - 1e-9)))
        return float(self.values[np.searchsorted(np.cumsum(self.counts), wanted)])

    def percentiles(self, percents: Sequence[float] = PERCENTILES) -> dict[float, float]:
        return {percent: self.percentile(percent) for percent in percents}

    def joined(self, other: Histogram) -> Histogram:
        return Histogram.of_counts(
            [
                *zip(self.values.tolist(), self.counts.tolist(), strict=True),
                *zip(other.values.tolist(), other.counts.tolist(), strict=True),
            ]
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """How often something happened, in messages per second."""

    messages: int
    first_ms: int
    last_ms: int
    mean: float
    peaks: dict[int, float]  # by the length of the window in seconds
    percentiles: dict[float, float]  # of single seconds from the first message to the last, idle ones included
    trend_per_day: float  # change of the rate in a day, by least squares over minutes
    fit: float  # how much of the minutes' variance the trend explains


class RateMeter:
    """Takes counts per step of 100 ms in order of time, in as many pieces as one likes; holds one window of them.

    Windows begin at multiples of a step. A second's rate is the count of that second of the clock.
    """

    def __init__(self, windows_s: Sequence[int] = WINDOWS_S) -> None:
        self._windows = tuple(windows_s)
        self._tail_steps: Longs = np.empty(0, np.int64)
        self._tail_counts: Longs = np.empty(0, np.int64)
        self._peaks = dict.fromkeys(self._windows, 0)
        self._seconds = _Periods(_STEPS_PER_S)
        self._minutes = _Periods(_MINUTE)
        self._first = self._last = -1
        self._total = 0

    def add(self, steps: Longs, counts: Longs) -> None:
        """Take counts of steps (milliseconds // 100), ascending, behind all taken before; a step may be continued."""
        if not len(steps):
            return
        assert self._last <= int(steps[0]), "steps ascend"
        if self._first < 0:
            self._first = int(steps[0])
        self._last = int(steps[-1])
        self._total += int(counts.sum())
        self._slide(steps, counts)
        self._seconds.add(steps, counts)
        self._minutes.add(steps, counts)

    def _slide(self, steps: Longs, counts: Longs) -> None:
        all_steps, all_counts = np.concatenate([self._tail_steps, steps]), np.concatenate([self._tail_counts, counts])
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(all_counts)])
        for window in self._windows:
            begin = np.searchsorted(all_steps, all_steps - window * _STEPS_PER_S, "right")
            self._peaks[window] = max(self._peaks[window], int((sums[1:] - sums[begin]).max()))
        kept = all_steps > all_steps[-1] - max(self._windows) * _STEPS_PER_S
        self._tail_steps, self._tail_counts = all_steps[kept], all_counts[kept]

    def rates(self) -> Rates:
        """Return what was measured so far."""
        if self._first < 0:
            return Rates(0, 0, 0, 0.0, dict.fromkeys(self._windows, 0.0), dict.fromkeys(PERCENTILES, 0.0), 0.0, 0.0)
        seconds, spent_s = self._seconds.histogram(), self._seconds.periods
        duration_s = max((self._last - self._first + 1) / _STEPS_PER_S, 1 / _STEPS_PER_S)
        slope, fit = self._minutes.trend()
        return Rates(
            messages=self._total,
            first_ms=self._first * STEP_MS,
            last_ms=self._last * STEP_MS + STEP_MS - 1,
            mean=self._total / duration_s,
            peaks={window: count / window for window, count in self._peaks.items()},
            percentiles=seconds.joined(Histogram.of_counts({0.0: spent_s - seconds.total})).percentiles(),
            trend_per_day=slope / 60 * _DAY_MINUTES,
            fit=fit,
        )


class _Periods:
    """Sums of counts over periods of some steps: how often which sum, and their trend. The last period stays open."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._first = self._open = self._open_count = -1
        self._counts: dict[int, int] = {}
        self._total = self._weighted = self._squares = 0.0

    def add(self, steps: Longs, counts: Longs) -> None:
        periods, place = np.unique(steps // self._steps, return_inverse=True)
        sums = np.bincount(place, counts).astype(np.int64)
        if self._first < 0:
            self._first = int(periods[0])
        if self._open == periods[0]:
            sums[0] += self._open_count
        elif self._open >= 0:
            self._close(np.array([self._open]), np.array([self._open_count]))
        self._close(periods[:-1], sums[:-1])
        self._open, self._open_count = int(periods[-1]), int(sums[-1])

    def _close(self, periods: Longs, sums: Longs) -> None:
        for value, often in zip(*(column.tolist() for column in np.unique(sums, return_counts=True)), strict=True):
            self._counts[value] = self._counts.get(value, 0) + often
        since = (periods - self._first).astype(float)
        self._total += float(sums.sum())
        self._weighted += float((since * sums).sum())
        self._squares += float((sums.astype(float) ** 2).sum())

    @property
    def periods(self) -> int:
        """From the first to the last, idle ones included."""
        return self._open - self._first + 1

    def histogram(self) -> Histogram:
        counts = dict(self._counts)
        counts[self._open_count] = counts.get(self._open_count, 0) + 1
        return Histogram.of_counts({float(value): often for value, often in counts.items()})

    def trend(self) -> tuple[float, float]:
        """Return the change of a period's sum from one period to the next, and the share of the variance it explains."""
        n = self.periods
        if n < 2:
            return 0.0, 0.0
        total, last = self._total + self._open_count, float(n - 1)
        weighted = self._weighted + last * self._open_count
        squares = self._squares + float(self._open_count) ** 2
        mean = (n - 1) / 2
        spread = n * (n * n - 1) / 12  # of 0, 1, ..., n - 1 about their mean
        covariance = weighted - mean * total
        variance = squares - total * total / n
        slope = covariance / spread
        return slope, (slope * covariance / variance if variance > 0 else 0.0)
