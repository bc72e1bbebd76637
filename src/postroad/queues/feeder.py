"""Feeding bound queues: the overlay's matching messages into a queue, each exactly once.

For each binding one process reads a stream of the overlay from the cursors the database holds and puts what comes, rows and
cursor in one transaction (`QueueStorage.feed`). The stream is the overlay's business and comes in as `open_stream`: given a
binding and its cursors (the last tick known per pubend) it yields `FedBatch`es, in tick order per pubend, that may repeat what
the cursor covers. Whoever opens streams keeps the overlay from releasing what is above a cursor; `on_fed` tells it how far a
pubend is safe.

Two processes that feed one binding are harmless (the cursor decides) but a waste, so a binding is claimed for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from postroad.errors import PostroadError, UnknownBindingError
from postroad.queues.service import QueueService
from postroad.storage.queues.base import Binding, FeedRow

log = logging.getLogger("postroad.queues")

CLAIM_MS: Final = 10_000
LOOK_S: Final = 2.0
"""How often the list of bindings is read: another broker may have made or ended one."""
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class FedBatch:
    """In the ticks up to `upto` of this pubend, `rows` are the matching messages above the last batch; all else is silence."""

    pubend: int
    upto: int
    rows: Sequence[FeedRow]


OpenStream = Callable[[Binding, Mapping[int, int]], AsyncGenerator[FedBatch, None]]
OnFed = Callable[[Binding, int, int], None]
OnUnbound = Callable[[Binding], Awaitable[None]]


class Feeder:
    """Feeds all bindings of a service's storage. Use as an async context manager."""

    def __init__(
        self,
        service: QueueService,
        open_stream: OpenStream,
        *,
        on_fed: OnFed | None = None,
        on_unbound: OnUnbound | None = None,
        look_s: float = LOOK_S,
        claim_ms: int = CLAIM_MS,
    ) -> None:
        self._service = service
        self._storage = service.storage
        self._open_stream = open_stream
        self._on_fed = on_fed
        self._on_unbound = on_unbound
        self._bindings: dict[int, Binding] = {}
        self._look_s, self._claim_ms = look_s, claim_ms
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._look_task: asyncio.Task[None] | None = None
        self._batches = 0

    async def __aenter__(self) -> Self:
        self._look_task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._look_task, *self._tasks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(PostroadError):
                found = {binding.binding_id: binding for binding in await self._storage.bindings()}
                for binding_id in [each for each in self._tasks if each not in found]:
                    await self._end(binding_id)
                for binding_id, binding in found.items():
                    if binding_id not in self._tasks:
                        self._bindings[binding_id] = binding
                        self._tasks[binding_id] = asyncio.create_task(self._keep_feeding(binding))
            await asyncio.sleep(self._look_s)

    async def _end(self, binding_id: int) -> None:
        """Stop feeding a binding that is gone, then tell whoever keeps the overlay's messages for it."""
        task = self._tasks.pop(binding_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        binding = self._bindings.pop(binding_id)
        if self._on_unbound is not None:
            await self._on_unbound(binding)

    async def _keep_feeding(self, binding: Binding) -> None:
        """Feed while the claim holds; after a failure begin again from the cursors.

        The operator is told once of a failure that lasts, or that is not retryable; what that rests on may be mended.
        """
        pause, told = RETRY_S, False
        while True:
            before, failure = self._batches, None
            try:
                if await self._storage.claim(binding.binding_id, for_ms=self._claim_ms):
                    await self._feed(binding)
            except UnknownBindingError:
                return
            except PostroadError as error:
                failure = error
            if self._batches > before:
                pause, told = RETRY_S, False
            else:
                pause = min(RETRY_S_MAX, pause * 2)
            if failure is not None and not told and (pause == RETRY_S_MAX or not failure.retryable):
                told = True
                level = logging.WARNING if failure.retryable else logging.ERROR
                text = "the queue bound to %r gets no messages now: %s [error %d]"
                log.log(level, text, binding.filter_text, failure, failure.code)
            told = told and failure is not None
            await asyncio.sleep(pause)

    async def _feed(self, binding: Binding) -> None:
        """Feed as long as the claim can be renewed, also while nothing comes: else another process would take the stream over."""
        feeding = asyncio.create_task(self._feed_stream(binding))
        try:
            while not feeding.done():
                await asyncio.wait({feeding}, timeout=self._claim_ms / 3_000)
                if not feeding.done() and not await self._storage.claim(binding.binding_id, for_ms=self._claim_ms):
                    return
            feeding.result()
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _feed_stream(self, binding: Binding) -> None:
        cursors = await self._storage.cursors(binding.binding_id)
        async with contextlib.aclosing(self._open_stream(binding, cursors)) as stream:
            async for batch in stream:
                put = await self._storage.feed(binding.binding_id, batch.pubend, batch.upto, batch.rows)
                self._batches += 1
                self._service.fed(binding.queue_id, put)
                if self._on_fed is not None:
                    self._on_fed(binding, batch.pubend, batch.upto)
