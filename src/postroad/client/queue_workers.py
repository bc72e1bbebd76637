"""Workers of one queue: messages are leased for those that are idle, and leases are kept while handlers run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from postroad.client.handlers import run_handlers
from postroad.client.telesto import Delivery, QueueMethods
from postroad.errors import InvalidValueError, PostroadError
from postroad.wire.packets.queues import BATCH_MAX

log = logging.getLogger("postroad.client")

EXTEND_AT: Final = 1 / 3  # of a lease
LEASE_S_MIN: Final = 0.1


class TakeMany(Protocol):
    """Lease messages: wait for one, and return at most `limit`."""

    def __call__(self, limit: int) -> Awaitable[list[Delivery]]: ...


async def run_workers(
    take: TakeMany,
    queues: QueueMethods,
    handle: Callable[[Delivery], Awaitable[object]],
    *,
    concurrency: int,
    lease: float,
) -> None:
    """Hand messages to `handle`, `concurrency` at a time, until this is cancelled or `handle` raises."""
    if lease < LEASE_S_MIN:
        raise InvalidValueError(f"a lease of a worker has at least {LEASE_S_MIN:g} s, not {lease:g}")
    leased = _Leased(take)
    keeping = asyncio.create_task(_keep_leases(leased, queues, lease))

    async def handle_one(delivery: Delivery) -> None:
        try:
            await handle(delivery)
        finally:
            if delivery.ended:
                leased.held.pop(delivery, None)

    try:
        await run_handlers(leased.next, handle_one, concurrency)
    finally:
        keeping.cancel()
        left = [each for each in leased.held if not each.ended]
        if left:
            await _give_back(queues, left)


class _Leased:
    """Messages that are leased and not ended."""

    def __init__(self, take: TakeMany) -> None:
        self.held: Final[dict[Delivery, None]] = {}
        self._take = take
        self._ready: deque[Delivery] = deque()
        self._taking = asyncio.Lock()
        self._idle = 0  # workers that wait for a message

    async def next(self) -> Delivery:
        self._idle += 1
        try:
            async with self._taking:
                while not self._ready:
                    taken = await self._take(min(self._idle, BATCH_MAX))
                    self._ready.extend(taken)
                    self.held.update(dict.fromkeys(taken))
                return self._ready.popleft()
        finally:
            self._idle -= 1


async def _keep_leases(leased: _Leased, queues: QueueMethods, lease: float) -> None:
    while True:
        await asyncio.sleep(lease * EXTEND_AT)
        held = [each for each in leased.held if not each.ended]
        for start in range(0, len(held), BATCH_MAX):
            try:
                await queues.extend(held[start : start + BATCH_MAX], lease)
            except PostroadError as error:  # who has lost a lease hears of it at the end; the others are extended
                log.warning("leases were not extended: %s", error)


async def _give_back(queues: QueueMethods, deliveries: list[Delivery]) -> None:
    """Give back what no handler ended. What cannot be given back comes again when its lease ends."""
    try:
        await queues.release(deliveries)
    except PostroadError as error:
        log.info("messages were not given back and come again when their leases end: %s", error)
