"""Things that wait for a rising number (an epoch, or the version of a hold), ordered by the number they wait for.

When a number is reached, those that wait for it or a lower one are found without looking at the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

W = TypeVar("W")


class Waiting(Generic[W]):
    """Numbered things that each wait for a label. The label None means: not known yet."""

    def __init__(self) -> None:
        self._labels: dict[int, int | None] = {}
        self._things: dict[int, W] = {}
        self._unlabelled: dict[int, None] = {}
        self._heap: list[tuple[int, int]] = []  # (label, number); outdated entries are dropped when they are lowest

    def __len__(self) -> int:
        return len(self._things)

    def add(self, number: int, thing: W, label: int | None) -> None:
        self._things[number] = thing
        self._labels[number] = label
        if label is None:
            self._unlabelled[number] = None
        else:
            self._unlabelled.pop(number, None)
            heapq.heappush(self._heap, (label, number))
            if len(self._heap) > 2 * len(self._things) + 64:
                self._heap = [(known, each) for each, known in self._labels.items() if known is not None]
                heapq.heapify(self._heap)

    def discard(self, number: int) -> None:
        if self._things.pop(number, None) is not None:
            del self._labels[number]
            self._unlabelled.pop(number, None)

    def unlabelled(self) -> list[tuple[int, W]]:
        """Return the things whose label is not known. Usually there are none."""
        return [(number, self._things[number]) for number in self._unlabelled]

    def take(self, label: int) -> Iterator[W]:
        """Remove and yield the things that wait for this label or a lower one."""
        while self._heap and self._heap[0][0] <= label:
            known, number = heapq.heappop(self._heap)
            if self._labels.get(number) == known:
                thing = self._things[number]
                self.discard(number)
                yield thing
