"""Which messages of a subscription the application has done with, when it says so message by message.

A broker keeps one position per stream: everything up to it is done with. An application that works on several messages at a time
finishes them in another order, so what it finished is kept here, and the position follows as far as no unfinished message lies
before it. A crash then repeats only messages that were not acknowledged, or lie behind one that was not.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from postroad.errors import InvalidValueError

if TYPE_CHECKING:
    from postroad.client.subscription import Subscription

UNFINISHED_BATCHES_MAX: Final = 65_536
"""Batches with unacknowledged messages, per subscription. Messages beyond them can be acknowledged when those are."""


class GivenBatch:
    """A batch whose messages the application got. It does not hold the messages."""

    __slots__ = ("count", "done", "last", "pubend", "subscription", "ticks", "tracked")

    def __init__(self, subscription: Subscription, pubend: int, count: int, last: int) -> None:
        self.subscription = subscription
        self.pubend = pubend
        self.count = count
        self.last = last  # tick of its last message
        self.done = 0  # rows before this one are acknowledged
        self.ticks: list[int] | None = None  # by row: the tick of an acknowledged message, 0 for the others
        self.tracked = False


class Acknowledgements:
    """The batches of one subscription that have messages left to acknowledge, in order, by pubend."""

    def __init__(self) -> None:
        self._open: Final[dict[int, deque[GivenBatch]]] = {}
        self._count = 0

    def begin(self, given: GivenBatch) -> None:
        """Take in that the application gets this batch now."""
        if self._count < UNFINISHED_BATCHES_MAX:
            given.tracked = True
            self._open.setdefault(given.pubend, deque()).append(given)
            self._count += 1

    def finish(self, given: GivenBatch, row: int, tick: int) -> int | None:
        """Note that one message is done with. Return the tick up to which all of its pubend is, if that has changed."""
        if not given.tracked:
            raise InvalidValueError(
                f"{UNFINISHED_BATCHES_MAX:,} batches before this message have unacknowledged messages: acknowledge those first"
            )
        if given.ticks is None:
            given.ticks = [0] * given.count
        given.ticks[row] = tick
        reached = None
        batches = self._open.get(given.pubend)
        while batches:
            head = batches[0]
            ticks = head.ticks
            while ticks is not None and head.done < head.count and ticks[head.done]:
                reached = ticks[head.done]
                head.done += 1
            if head.done < head.count:
                break
            batches.popleft()
            self._count -= 1
        return reached

    def finish_through(self, ticks: dict[int, int], given: GivenBatch | None = None, row: int = -1) -> None:
        """Note that everything up to these ticks is done with; `row` is the last such row of the batch `given`."""
        for pubend, tick in ticks.items():
            batches = self._open.get(pubend)
            while batches and batches[0].last <= tick:
                batches.popleft()
                self._count -= 1
        if given is not None:
            given.done = max(given.done, row + 1)

    def clear(self) -> None:
        self._open.clear()
        self._count = 0
