"""Group commit for calls to a database: what arrives while a call is under way leaves together in the next.

An idle combiner sends at once, so nothing waits for a timer; a busy one sends few large calls instead of many small ones,
each with one flush of the database's log. What waits is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from postroad.errors import QueueBusyError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

CALLS_WAITING_MAX: Final = 4_096
ROWS_MAX: Final = 1_000
BYTES_MAX: Final = 8 << 20


def _no_bytes(_: object) -> int:
    return 0


class Combiner(Generic[ItemT, ResultT]):
    """`run` gets the items of several calls and returns one result per item, in order, or raises for all of them."""

    def __init__(
        self,
        run: Callable[[list[ItemT]], Awaitable[list[ResultT]]],
        *,
        parallel: int = 1,
        rows_max: int = ROWS_MAX,
        item_bytes: Callable[[ItemT], int] = _no_bytes,
        calls_waiting_max: int = CALLS_WAITING_MAX,
    ) -> None:
        self._run = run
        self._parallel = parallel
        self._rows_max = rows_max
        self._item_bytes = item_bytes
        self._calls_waiting_max = calls_waiting_max
        self._waiting: deque[tuple[Sequence[ItemT], asyncio.Future[list[ResultT]]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, items: Sequence[ItemT]) -> list[ResultT]:
        if not items:
            return []
        if len(self._waiting) >= self._calls_waiting_max:
            raise QueueBusyError(f"{len(self._waiting)} calls wait for the database already; try again")
        future: asyncio.Future[list[ResultT]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, future))
        if len(self._tasks) < self._parallel:
            self._start()
        return await future

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._waiting:
            calls = self._next_calls()
            try:
                results = await self._run([item for items, _ in calls for item in items])
            except BaseException as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
                for _, future in calls:
                    if not future.done():
                        future.set_exception(error)
                continue
            start = 0
            for items, future in calls:
                if not future.done():
                    future.set_result(results[start : start + len(items)])
                start += len(items)

    def _next_calls(self) -> list[tuple[Sequence[ItemT], asyncio.Future[list[ResultT]]]]:
        calls: list[tuple[Sequence[ItemT], asyncio.Future[list[ResultT]]]] = []
        rows = size = 0
        while self._waiting:
            items = self._waiting[0][0]
            rows += len(items)
            size += sum(map(self._item_bytes, items))
            if calls and (rows > self._rows_max or size > BYTES_MAX):
                break
            calls.append(self._waiting.popleft())
        return calls
