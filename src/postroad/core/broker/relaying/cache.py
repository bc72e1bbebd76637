"""The cache of one pubend's stream: the knowledge that a broker has received and still keeps.

It consists of segments (lo, hi] with a label and rows, sorted and disjoint. The label is the epoch of the interest for which
every tick without a row is silence. A higher label is at least as good for every filter requested since. So a range that arrives
again replaces segments with a lower label, and never the other way round.

The size is bounded in bytes; the oldest ticks are evicted first. A segment without rows costs a fixed amount.

Invariant: `_los` is sorted and `segments[i].hi <= segments[i + 1].lo`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from postroad.core.broker.knowledge import Segment

EVICTED_AT_ONCE: Final = 32  # evict 1/32 of the cache at a time


class StreamCache:
    """Segments of one stream."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._segments: list[Segment] = []
        self._los: list[int] = []
        self.size = 0
        self.frontier = 0  # the highest tick ever received
        self.evicted = 0  # the highest tick ever evicted

    def add(self, segment: Segment) -> list[Segment]:
        """Add a segment; return its parts that are new (unknown ticks, or ticks known with a lower label)."""
        if segment.hi <= segment.lo:
            return []
        if not self._segments or segment.lo >= self._segments[-1].hi:
            news = [segment]
            self._segments.append(segment)
            self._los.append(segment.lo)
            self.size += segment.size
        else:
            news = self._merge(segment)
        self.frontier = max(self.frontier, segment.hi)
        self._evict()
        return news

    def read(self, lo: int, hi: int) -> Iterator[Segment]:
        """Yield the cached parts of (lo, hi], in order."""
        if hi <= lo:
            return
        index = max(bisect_right(self._los, lo) - 1, 0)
        while index < len(self._segments) and self._segments[index].lo < hi:
            segment = self._segments[index]
            if segment.hi > lo:
                yield segment.cut(lo, hi)
            index += 1

    def drop_through(self, tick: int) -> None:
        """Forget everything up to a tick."""
        keep = bisect_left([s.hi for s in self._segments], tick + 1)
        self.size -= sum(s.size for s in self._segments[:keep])
        del self._segments[:keep]
        del self._los[:keep]

    def labels(self) -> set[int]:
        return {segment.label for segment in self._segments}

    def __len__(self) -> int:
        return len(self._segments)

    def _merge(self, segment: Segment) -> list[Segment]:
        first = max(bisect_right(self._los, segment.lo) - 1, 0)
        if self._segments[first].hi <= segment.lo:
            first += 1
        last = bisect_left(self._los, segment.hi)
        old = self._segments[first:last]
        merged: list[Segment] = []
        news: list[Segment] = []
        position = segment.lo
        for held in old:
            if held.lo < segment.lo:
                merged.append(held.cut(held.lo, segment.lo))
            if position < held.lo:
                news.append(segment.cut(position, held.lo))
                merged.append(news[-1])
            inside = held.cut(segment.lo, segment.hi)
            if held.label >= segment.label:
                merged.append(inside)
            else:
                news.append(segment.cut(inside.lo, inside.hi))
                merged.append(news[-1])
            position = inside.hi
            if held.hi > segment.hi:
                merged.append(held.cut(segment.hi, held.hi))
        if position < segment.hi:
            news.append(segment.cut(position, segment.hi))
            merged.append(news[-1])
        self.size += sum(s.size for s in merged) - sum(s.size for s in old)
        self._segments[first:last] = merged
        self._los[first:last] = [s.lo for s in merged]
        return news

    def _evict(self) -> None:
        """Evict the oldest segments. Deleting from the front moves all others, so many are deleted at a time."""
        if self.size <= self._bytes_max:
            return
        count, size, wanted = 0, self.size, self._bytes_max - self._bytes_max // EVICTED_AT_ONCE
        while size > wanted and count < len(self._segments) - 1:
            size -= self._segments[count].size
            count += 1
        if count:
            self.size = size
            self.evicted = max(self.evicted, self._segments[count - 1].hi)
            del self._segments[:count]
            del self._los[:count]
