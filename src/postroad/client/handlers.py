"""Handlers at work: several at a time, each with one message, until the work ends, fails or is cancelled.

A cancelled `run_handlers` takes nothing new and waits for the handlers that have begun; a second cancellation ends those too.
When a handler fails, the others that have begun finish, and then the error is raised.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from postroad.errors import InvalidValueError

ItemT = TypeVar("ItemT")

CONCURRENCY_MAX: Final = 10_000


async def run_handlers(
    take: Callable[[], Awaitable[ItemT]], handle: Callable[[ItemT], Awaitable[object]], concurrency: int
) -> None:
    """Call `handle` with what `take` gives, `concurrency` times at once, until `take` raises `StopAsyncIteration`."""
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidValueError(f"concurrency is from 1 to {CONCURRENCY_MAX:,}, not {concurrency}")
    workers = [_Worker(take, handle) for _ in range(concurrency)]
    tasks = [asyncio.create_task(worker.work()) for worker in workers]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for worker, task in zip(workers, tasks, strict=True):
            worker.stopping = True
            if not worker.busy:
                task.cancel()
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [each for each in outcomes if isinstance(each, Exception)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several handlers failed", errors)


class _Worker(Generic[ItemT]):
    def __init__(self, take: Callable[[], Awaitable[ItemT]], handle: Callable[[ItemT], Awaitable[object]]) -> None:
        self.busy = False
        self.stopping = False
        self._take = take
        self._handle = handle

    async def work(self) -> None:
        while not self.stopping:
            try:
                item = await self._take()
            except StopAsyncIteration:
                return
            self.busy = True
            await self._handle(item)
            self.busy = False


def as_coroutine(handler: Callable[[ItemT], Any]) -> Callable[[ItemT], Awaitable[Any]]:
    """Return a handler that can be awaited. A plain function runs in a thread, so it may block."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return handler

    async def call(item: ItemT) -> Any:
        result = await asyncio.to_thread(handler, item)
        return await result if inspect.isawaitable(result) else result

    return call
