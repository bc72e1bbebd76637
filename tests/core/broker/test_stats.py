"""Percentiles, peaks and trends against plain computations."""

from __future__ import annotations

import numpy as np
import pytest

from postroad.core.broker.stats import Histogram, RateMeter


def test_percentiles_are_values_that_occurred() -> None:
    """The p-th percentile is the smallest value that at least p percent do not exceed."""
    found = Histogram.of([5, 1, 9, 1, 7])
    assert found.percentiles((0, 20, 40, 41, 60, 80, 99, 100)) == {0: 1, 20: 1, 40: 1, 41: 5, 60: 5, 80: 7, 99: 9, 100: 9}
    assert found.total == 5
    assert found.mean == pytest.approx(4.6)


def test_a_histogram_of_nothing_has_no_percentiles() -> None:
    """No value is not zero."""
    assert np.isnan(Histogram.of([]).percentile(50))
    assert np.isnan(Histogram.of_counts({}).mean)


def test_joined_histograms_count_as_one() -> None:
    """Counts made apart add up."""
    random = np.random.default_rng(1)
    values = random.integers(0, 50, 1000)
    joined = Histogram.of(values[:300]).joined(Histogram.of(values[300:]))
    whole = Histogram.of(values)
    assert joined.values.tolist() == whole.values.tolist()
    assert joined.counts.tolist() == whole.counts.tolist()


def slow_peak(steps: list[int], counts: list[int], window: int) -> float:
    best = 0
    for end in steps:
        best = max(best, sum(count for step, count in zip(steps, counts, strict=True) if end - window * 10 < step <= end))
    return best / window


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_rates_are_the_same_in_one_piece_and_in_many(seed: int, piece: int) -> None:
    """Peaks, percentiles and trend equal the slow computation, however the counts are handed in."""
    random = np.random.default_rng(seed)
    steps = np.unique(random.integers(0, 4000, 300))
    counts = random.integers(1, 20, len(steps))
    meter = RateMeter()
    for start in range(0, len(steps), piece):
        meter.add(steps[start : start + piece], counts[start : start + piece])
    found = meter.rates()
    assert found.messages == counts.sum()
    for window in (1, 10, 60):
        assert found.peaks[window] == pytest.approx(slow_peak(steps.tolist(), counts.tolist(), window))
    seconds = np.bincount(steps // 10, counts)[int(steps[0]) // 10 :]
    assert found.percentiles == Histogram.of(seconds).percentiles()
    minutes = np.bincount(steps // 600, counts)[int(steps[0]) // 600 :]
    slope, _ = np.polyfit(np.arange(len(minutes)), minutes, 1)
    assert found.trend_per_day == pytest.approx(slope / 60 * 1440, rel=1e-6, abs=1e-6)


def test_a_step_may_be_continued_in_the_next_piece() -> None:
    """Counts of one step that arrive apart are one count."""
    meter = RateMeter()
    meter.add(np.array([10]), np.array([3]))
    meter.add(np.array([10, 11]), np.array([4, 1]))
    assert meter.rates().peaks[1] == 8
    assert meter.rates().percentiles[100.0] == 8


def test_a_meter_without_messages_says_so() -> None:
    """Nothing happened: no rates, no trend."""
    assert RateMeter().rates().messages == 0
    assert RateMeter().rates().peaks == {1: 0.0, 10: 0.0, 60: 0.0}
