"""Waiting takes: who waits on which queue, and whom to wake.

A waiter is registered before the attempt that finds nothing, so a put after that attempt wakes it. A message wakes one waiter
that may have it, the longest waiting first; when it is not known what became visible (another broker's put, a promotion), all
waiters of the queue wake. A waiter that was woken and leaves without trying passes the wake on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from postroad.errors import QueueBusyError
from postroad.storage.queues.base import NewMessage, TakeRequest

_MATCHES_MAX: Final = 10_000
"""Above this many (message, waiter) pairs waking everybody is cheaper than choosing."""


class Waiter:
    """One waiting take."""

    __slots__ = ("_future", "request", "woken")

    def __init__(self, request: TakeRequest) -> None:
        self.request = request
        self.woken = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self.woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return when woken or after the timeout, whichever is first."""
        if self.woken:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(max(0.0, timeout_s), self._expire, self._future)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None

    @staticmethod
    def _expire(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    def may_have(self, message: NewMessage) -> bool:
        request = self.request
        if request.context is not None:
            return message.receiver_id == request.client_id and message.context == request.context
        return message.receiver_id in (None, request.client_id) and request.sender_id in (None, message.sender_id)


class Signals:
    """All waiting takes of one process."""

    def __init__(self, *, waiters_max: int) -> None:
        self._waiters_max = waiters_max
        self._queues: dict[int, dict[Waiter, None]] = {}  # insertion order: the longest waiting first
        self.waiting = 0

    @contextmanager
    def waiter(self, request: TakeRequest) -> Iterator[Waiter]:
        if self.waiting >= self._waiters_max:
            raise QueueBusyError(f"{self.waiting:,} takes wait already; try again or wait less long")
        waiter = Waiter(request)
        self._queues.setdefault(request.queue_id, {})[waiter] = None
        self.waiting += 1
        try:
            yield waiter
        finally:
            self.waiting -= 1
            waiters = self._queues[request.queue_id]
            del waiters[waiter]
            if not waiters:
                del self._queues[request.queue_id]
            if waiter.woken:
                self.wake_all(request.queue_id)

    def waits_on(self, queue_id: int) -> bool:
        return queue_id in self._queues

    def visible(self, messages: Iterable[NewMessage]) -> None:
        """Wake one waiter for each message that just became visible through this process."""
        if not self._queues:
            return
        by_queue: dict[int, list[NewMessage]] = {}
        for message in messages:
            if message.queue_id in self._queues:
                by_queue.setdefault(message.queue_id, []).append(message)
        for queue_id, fresh in by_queue.items():
            waiters = self._queues[queue_id]
            if len(fresh) >= len(waiters) or len(fresh) * len(waiters) > _MATCHES_MAX:
                self.wake_all(queue_id)
                continue
            for message in fresh:
                chosen = next((w for w in waiters if not w.woken and w.may_have(message)), None)
                if chosen is not None:
                    chosen.wake()

    def wake_all(self, queue_id: int | None) -> None:
        """Wake everybody on a queue, or on all queues."""
        chosen = list(self._queues.values()) if queue_id is None else [self._queues.get(queue_id, {})]
        for waiters in chosen:
            for waiter in waiters:
                waiter.wake()
