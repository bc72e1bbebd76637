"""The cache of one pubend's stream: the knowledge that a broker has received and still keeps.

It consists of ranges (lo, hi] with a label and rows, sorted and disjoint. The label is the epoch of the interest for which
every tick without a row is silence. A higher label is at least as good for every filter requested since. So a range that arrives
again replaces ranges with a lower label, and never the other way round.

The size is bounded in bytes; the oldest ticks are evicted first. A range without rows costs a fixed amount. While the broker's
own subscribers wait for a gap to close, what follows the gap up to `keep_from` is evicted from its end instead: the oldest of it
is delivered first. It will be requested again.

Invariant: `_los` is sorted and `ranges[i].hi <= ranges[i + 1].lo`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from postroad.core.broker.knowledge import KnowledgeRange

EVICTED_AT_ONCE: Final = 32  # evict 1/32 of the cache at a time


class StreamCache:
    """Ranges of one stream."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ranges: list[KnowledgeRange] = []
        self._los: list[int] = []
        self.size = 0
        self.frontier = 0  # the highest tick ever received
        self.evicted = 0  # the highest tick ever evicted from the front
        self.keep_from: int | None = None  # what comes after this tick still has to be delivered here
        self._dropped_after: int | None = None  # the lowest tick after which something was evicted from the end

    def add(self, known: KnowledgeRange) -> list[KnowledgeRange]:
        """Add a range; return its parts that are new (unknown ticks, or ticks known with a lower label)."""
        if known.hi <= known.lo:
            return []
        if not self._ranges or known.lo >= self._ranges[-1].hi:
            news = [known]
            self._ranges.append(known)
            self._los.append(known.lo)
            self.size += known.size
        else:
            news = self._merge(known)
        self.frontier = max(self.frontier, known.hi)
        self._evict()
        return news

    def read(self, lo: int, hi: int) -> Iterator[KnowledgeRange]:
        """Yield the cached parts of (lo, hi], in order."""
        if hi <= lo:
            return
        index = max(bisect_right(self._los, lo) - 1, 0)
        while index < len(self._ranges) and self._ranges[index].lo < hi:
            known = self._ranges[index]
            if known.hi > lo:
                yield known.cut(lo, hi)
            index += 1

    def trim_beyond(self, tick: int, bytes_max: int) -> None:
        """Evict from the end until no more than this is cached after a tick."""
        if self.size <= bytes_max:
            return
        index = max(bisect_right(self._los, tick) - 1, 0)
        beyond = sum(known.size for known in self._ranges[index:] if known.hi > tick)
        while beyond > bytes_max and len(self._ranges) > index + 1:
            beyond -= self._ranges[-1].size
            self._drop_last()

    def drop_through(self, tick: int) -> None:
        """Forget everything up to a tick."""
        keep = bisect_left([s.hi for s in self._ranges], tick + 1)
        self.size -= sum(s.size for s in self._ranges[:keep])
        del self._ranges[:keep]
        del self._los[:keep]

    def labels(self) -> set[int]:
        return {known.label for known in self._ranges}

    def __len__(self) -> int:
        return len(self._ranges)

    def _merge(self, known: KnowledgeRange) -> list[KnowledgeRange]:
        first = max(bisect_right(self._los, known.lo) - 1, 0)
        if self._ranges[first].hi <= known.lo:
            first += 1
        last = bisect_left(self._los, known.hi)
        old = self._ranges[first:last]
        merged: list[KnowledgeRange] = []
        news: list[KnowledgeRange] = []
        position = known.lo
        for held in old:
            if held.lo < known.lo:
                merged.append(held.cut(held.lo, known.lo))
            if position < held.lo:
                news.append(known.cut(position, held.lo))
                merged.append(news[-1])
            inside = held.cut(known.lo, known.hi)
            if held.label >= known.label:
                merged.append(inside)
            else:
                news.append(known.cut(inside.lo, inside.hi))
                merged.append(news[-1])
            position = inside.hi
            if held.hi > known.hi:
                merged.append(held.cut(known.hi, held.hi))
        if position < known.hi:
            news.append(known.cut(position, known.hi))
            merged.append(news[-1])
        self.size += sum(s.size for s in merged) - sum(s.size for s in old)
        self._ranges[first:last] = merged
        self._los[first:last] = [s.lo for s in merged]
        return news

    def _evict(self) -> None:
        """Evict the oldest ranges. Deleting from the front moves all others, so many are deleted at a time."""
        if self.size <= self._bytes_max:
            return
        count, size, wanted = 0, self.size, self._bytes_max - self._bytes_max // EVICTED_AT_ONCE
        while size > wanted and count < len(self._ranges) - 1 and not self._is_kept(self._ranges[count]):
            size -= self._ranges[count].size
            count += 1
        if count:
            self.size = size
            self.evicted = max(self.evicted, self._ranges[count - 1].hi)
            del self._ranges[:count]
            del self._los[:count]
        if self.keep_from is not None:
            while self.size > self._bytes_max and len(self._ranges) > 1:
                self._drop_last()

    def _is_kept(self, known: KnowledgeRange) -> bool:
        return self.keep_from is not None and known.hi > self.keep_from

    def take_dropped(self) -> int | None:
        """Return the lowest tick after which something was evicted from the end since the last call; None: nothing was."""
        dropped, self._dropped_after = self._dropped_after, None
        return dropped

    def _drop_last(self) -> None:
        self.size -= self._ranges.pop().size
        lo = self._los.pop()
        self._dropped_after = lo if self._dropped_after is None else min(self._dropped_after, lo)
