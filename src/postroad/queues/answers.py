"""Room for the answers of one connection, and of all connections together.

A small request may have a large answer. Before the service reads messages for an answer it takes room for it here, and gives the
room back when the answer was handed to the connection. While a connection does not take its output, nothing more is read for it:
what waits for it is then its output and one answer at most, however many requests it sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

CONNECTION_ANSWER_BYTES_MAX: Final = 16 << 20
ANSWER_BYTES_MAX: Final = 64 << 20
"""Of all connections of a service together."""
ROW_BYTES_MIN: Final = 4 << 10


class AnswerRoom:
    """Bytes of answers under way. One answer always fits when nothing else is under way. First come, first served."""

    def __init__(self, bytes_max: int = CONNECTION_ANSWER_BYTES_MAX, shared: AnswerRoom | None = None) -> None:
        self._bytes_max = bytes_max
        self._shared = shared
        self._held = 0
        self._congested = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held(self) -> int:
        return self._held

    def set_congested(self, congested: bool) -> None:
        """Hear whether the connection takes its output."""
        self._congested = congested
        self._admit()

    def try_enter(self, size: int) -> bool:
        """Take room if there is some at once."""
        if self._waiting or not self._fits(size) or not (self._shared is None or self._shared.try_enter(size)):
            return False
        self._held += size
        return True

    async def enter(self, size: int) -> None:
        """Take room, as soon as there is some. `leave` must follow."""
        if self._waiting or not self._fits(size):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, future))
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._leave(size)  # it had just been given
                raise
        else:
            self._held += size
        if self._shared is not None:
            try:
                await self._shared.enter(size)
            except asyncio.CancelledError:
                self._leave(size)
                raise

    def leave_soon(self, size: int) -> None:
        """Give room back once the answer that is about to be sent has reached the connection, which may then be congested."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self.leave, size)

    def leave(self, size: int) -> None:
        self._leave(size)
        if self._shared is not None:
            self._shared.leave(size)

    def _leave(self, size: int) -> None:
        self._held -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return not self._congested and (not self._held or self._held + size <= self._bytes_max)

    def _admit(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if not self._fits(size):
                    return
                self._held += size
                future.set_result(None)
            self._waiting.popleft()
