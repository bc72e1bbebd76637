"""Waiting takes: who waits on which queue, and whom to wake.

A waiter is registered before the attempt that finds nothing, so a put after that attempt wakes it. A message wakes one waiter
that may have it, the longest waiting first; when it is not known what became visible (another broker's put, a promotion), all
waiters of the queue wake. A waiter that was woken and leaves without trying passes the wake on.

A message put while a take sleeps is handed over: the sleeper is reserved, the message is put as leased to its client, in one
transaction instead of two, and the sleeper gets it when that is durable. It is not handed over while an earlier put of its sender
into that queue is under way: the take would get the later message first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from postroad.errors import QueueBusyError
from postroad.storage.queues.base import Message, NewMessage, TakeRequest

_RESERVED_MAX: Final = 100
"""Messages of one put that are handed over; the rest become visible and wake takes."""
_MATCHES_MAX: Final = 10_000
"""Above this many (message, waiter) pairs waking everybody is cheaper than choosing."""


class Waiter:
    """One waiting take. While it is reserved it sleeps on, until it is handed its message or let go."""

    __slots__ = ("_future", "handed", "request", "reserved", "woken")

    def __init__(self, request: TakeRequest) -> None:
        self.request = request
        self.woken = False
        self.reserved = False
        self.handed: Message | None = None
        self._future: asyncio.Future[Message | None] | None = None

    @property
    def sleeps(self) -> bool:
        """Whether it is waiting and neither woken nor promised a message."""
        return self._future is not None and not self._future.done() and not self.reserved and not self.woken

    def wake(self) -> None:
        self.woken = True
        self._end(None)

    def hand(self, message: Message) -> bool:
        """End the wait with a message put for it; return False when it is gone."""
        self.reserved = False
        if self._future is None or self._future.done():
            return False
        self.handed = message
        self._future.set_result(message)
        return True

    def let_go(self) -> None:
        """Take back a reservation: nothing came of it."""
        self.reserved = False
        self.wake()

    async def wait(self, timeout_s: float) -> Message | None:
        """Return a message handed over, or None when woken or after the timeout, whichever is first."""
        if self.woken:
            return None
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(max(0.0, timeout_s), self._end, None)
        try:
            return await self._future
        finally:
            timer.cancel()
            self._future = None

    def _end(self, result: None) -> None:
        if self._future is not None and not self._future.done() and not self.reserved:
            self._future.set_result(result)

    def may_have(self, message: NewMessage) -> bool:
        request = self.request
        if request.context is not None:
            return message.receiver_id == request.client_id and message.context == request.context
        return message.receiver_id in (None, request.client_id) and request.sender_id in (None, message.sender_id)


class Waiters:
    """All waiting takes of one process."""

    def __init__(self, *, waiters_max: int) -> None:
        self._waiters_max = waiters_max
        self._queues: dict[int, dict[Waiter, None]] = {}  # insertion order: the longest waiting first
        self._putting: Counter[tuple[int, int]] = Counter()  # (queue, sender): messages under way that nobody is promised
        self.waiting = 0

    @contextmanager
    def waiter(self, request: TakeRequest) -> Iterator[Waiter]:
        if self.waiting >= self._waiters_max:
            raise QueueBusyError(f"{self.waiting:,} takes are waiting already; try again, or use a shorter wait")
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

    def reserve(self, messages: Sequence[NewMessage]) -> dict[int, Waiter]:
        """Promise messages about to be put to sleeping takes that may have them, by place: the longest waiting first.

        A take of many is better served by a take than by one message of many.
        """
        reserved: dict[int, Waiter] = {}
        if not self._queues:
            return reserved
        passed: set[tuple[int, int]] = set()
        for place, message in enumerate(messages[:_RESERVED_MAX]):
            lane = (message.queue_id, message.sender_id)
            if message.delay_ms or lane in passed or lane in self._putting:
                continue
            passed.add(lane)
            for waiter in self._queues.get(message.queue_id, ()):
                request = waiter.request
                few = request.limit == 1 or len(messages) == 1
                if few and waiter.sleeps and request.lease_ms != 0 and waiter.may_have(message):
                    waiter.reserved = True
                    reserved[place] = waiter
                    passed.discard(lane)
                    break
        return reserved

    def put_started(self, messages: Iterable[NewMessage]) -> None:
        """Hear of a put under way. `put_ended` must follow with the same messages."""
        self._putting.update((m.queue_id, m.sender_id) for m in messages if m.lease_to is None)

    def put_ended(self, messages: Iterable[NewMessage]) -> None:
        for message in messages:
            if message.lease_to is None:
                lane = (message.queue_id, message.sender_id)
                self._putting[lane] -= 1
                if not self._putting[lane]:
                    del self._putting[lane]

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
                chosen = next((w for w in waiters if not w.woken and not w.reserved and w.may_have(message)), None)
                if chosen is not None:
                    chosen.wake()

    def wake_all(self, queue_id: int | None) -> None:
        """Wake everybody on a queue, or on all queues."""
        chosen = list(self._queues.values()) if queue_id is None else [self._queues.get(queue_id, {})]
        for waiters in chosen:
            for waiter in waiters:
                waiter.wake()
