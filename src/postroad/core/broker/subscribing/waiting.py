"""Subscriptions that wait for their interest in a stream to become active, by the label they wait for.

When the parent answers an epoch, those that wait for it or an earlier one are found without looking at the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

W = TypeVar("W")


class Waiting(Generic[W]):
    """Numbered things that wait for a label each. A label of None is not known yet."""

    def __init__(self) -> None:
        self._labels: dict[int, int | None] = {}
        self._things: dict[int, W] = {}
        self._unlabelled: dict[int, None] = {}
        self._heap: list[tuple[int, int]] = []  # (label, number); those that wait no longer are dropped when they come up

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
        """Return those whose label is not known. Usually there is none."""
        return [(number, self._things[number]) for number in self._unlabelled]

    def take(self, label: int) -> Iterator[W]:
        """Yield and forget those that wait for a label up to this one."""
        while self._heap and self._heap[0][0] <= label:
            known, number = heapq.heappop(self._heap)
            if self._labels.get(number) == known:
                thing = self._things[number]
                self.discard(number)
                yield thing
