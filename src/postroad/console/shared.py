"""Answers that several pages share, so that what a page costs does not grow with the overlay or with the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Generic, TypeVar

T = TypeVar("T")
HELD_S: Final = 1.0  # an answer is at least as old before the question is asked again
REST: Final = 30  # and after a question that took long, nothing is asked for so many times as long


class SharedAnswer(Generic[T]):
    """The newest answer to one question. Questions that come meanwhile wait for the same answer."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], float] = monotonic) -> None:
        self._ask: Final = ask
        self._clock: Final = clock
        self._asking: Final = asyncio.Lock()
        self._due = 0.0
        self._answers: list[T] = []  # none or one

    async def get(self) -> T:
        async with self._asking:
            began = self._clock()
            if not self._answers or began >= self._due:
                self._answers[:] = [await self._ask()]
                ended = self._clock()
                self._due = ended + max(HELD_S, REST * (ended - began))
            return self._answers[0]
