"""What a filter is expected to bring, from values that were sampled: a narrower interval than that of formula (1).

By what is advertised alone, a filter that overlaps an advertisement may bring all of its rate. With
`estimate`, the broker of a publisher samples the numbers in its messages, one histogram for each
attribute, and sends them along with the advertisement. Every broker then estimates the share of an
advertisement's messages that a set of filters matches.

A histogram is `POINTS` quantiles. They make up `POINTS` imaginary messages: one quantile of each
attribute, mixed, since the histograms do not tell which values occur together. A filter becomes a
mask, the imaginary messages that it matches, and several filters the union of their masks. So a
filter that is covered by another one adds nothing. What a filter says about other attributes is
taken to be true: the estimate may be too high for that, never too low. One point is added for the
error of the samples, so nothing that overlaps costs nothing.

It is an estimate: it does not hold when the values change. It is off by default.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from postroad.core.filters.algebra.normal_form import ATTRIBUTE_KEY
from postroad.core.filters.algebra.spans import Numbers
from postroad.core.filters.filter import Filter
from postroad.types import AttributeValue

POINTS: Final = 64
EVERY_POINT: Final = (1 << POINTS) - 1
STRIDES: Final = (1, 19, 37, 11, 53, 29, 43, 5)  # odd, so each mixes all points; one for each attribute
ATTRIBUTES_MAX: Final = len(STRIDES)
ROWS_KEPT: Final = 256
ROWS_NEEDED: Final = 32
ROWS_PER_S: Final = 50
RENEW_S: Final = 5.0
DRIFT: Final = 0.1  # so much of a distribution has to move before a new histogram is sent
MASKS_MAX: Final = 4_096
Profile: TypeAlias = tuple[tuple[str, tuple[float, ...]], ...]  # attribute -> its quantiles


class Sampler:
    """The numbers in the recent messages of one advertisement."""

    def __init__(self) -> None:
        self.profile: Profile = ()  # as it was sent last
        self._rows: deque[dict[str, float]] = deque(maxlen=ROWS_KEPT)
        self._second = 0
        self._taken = 0  # in this second
        self._new = 0  # since `profile` was made
        self._made_at = 0.0

    def add(self, attributes: Mapping[str, AttributeValue], now: float) -> None:
        """Take a message into the sample, if this second has room."""
        if int(now) != self._second:
            self._second, self._taken = int(now), 0
        if self._taken < ROWS_PER_S:
            self._taken += 1
            self._new += 1
            self._rows.append({name: float(value) for name, value in attributes.items() if _is_number(value)})

    def renew(self, now: float) -> bool:
        """Make a new profile if there is reason to; tell whether it differs."""
        if self._new < ROWS_NEEDED or (self.profile and now - self._made_at < RENEW_S):
            return False
        self._new, self._made_at = 0, now
        profile = profile_of(self._rows)
        if {name for name, _ in profile} == {name for name, _ in self.profile} and not self._has_drifted(dict(profile)):
            return False
        self.profile = profile
        return True

    def _has_drifted(self, profile: Mapping[str, tuple[float, ...]]) -> bool:
        """Tell whether more than `DRIFT` of a distribution lies elsewhere than before."""
        for name, before in self.profile:
            after = profile[name]
            if any(abs(bisect_right(after, value) - bisect_right(before, value)) > DRIFT * POINTS for value in (*before, *after)):
                return True
        return False


def profile_of(rows: Iterable[Mapping[str, float]]) -> Profile:
    """Return the quantiles of every attribute that all rows have."""
    kept = list(rows)
    names = sorted(name for name in kept[0] if all(name in row for row in kept))[:ATTRIBUTES_MAX] if kept else []
    found = []
    for name in names:
        values = sorted(row[name] for row in kept)
        found.append((name, tuple(values[(2 * point + 1) * len(values) // (2 * POINTS)] for point in range(POINTS))))
    return tuple(found)


class Histograms:
    """The histograms of one advertisement, as imaginary messages."""

    def __init__(self, profile: Profile) -> None:
        self.profile: Final = profile
        self._points: Final[dict[str, list[float]]] = {}
        for number, (name, quantiles) in enumerate(profile[:ATTRIBUTES_MAX]):
            stride, count = STRIDES[number], len(quantiles)
            self._points[name] = [quantiles[(point * stride + 7 * number) % POINTS * count // POINTS] for point in range(POINTS)]
        self._masks: dict[Filter, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histograms) and other.profile == self.profile

    def __hash__(self) -> int:
        return hash(self.profile)

    def mask(self, filter_: Filter) -> int:
        """Return the imaginary messages that a filter matches, as bits."""
        known = self._masks.get(filter_)
        if known is None:
            if len(self._masks) >= MASKS_MAX:
                self._masks.clear()
            known = self._masks[filter_] = self._match(filter_)
        return known

    def _match(self, filter_: Filter) -> int:
        found = 0
        for box in filter_.normal.boxes:
            mask = EVERY_POINT
            for key, constraint in box.items():
                values = self._points.get(key.removeprefix(ATTRIBUTE_KEY)) if key.startswith(ATTRIBUTE_KEY) else None
                if values is not None:
                    mask &= _within(values, constraint.numbers)
            found |= mask
        return found


def expected(millirate: int, mask: int) -> int:
    """Return how much of a rate is expected, rounded up."""
    points = min(mask.bit_count() + 1, POINTS)
    return -(-millirate * points // POINTS)


def _within(values: Iterable[float], numbers: Numbers) -> int:
    mask = 0
    for point, value in enumerate(values):
        if bisect_right(numbers, (value, 0)) & 1:
            mask |= 1 << point
    return mask


def _is_number(value: AttributeValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
