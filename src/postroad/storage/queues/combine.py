"""Group commit for calls to a database: what arrives while a call is under way leaves together in the next.

An idle combiner sends at once, so nothing waits for a timer; a busy one sends few large calls instead of many small ones,
each with one flush of the database's log. What waits is bounded.

Calls of one lane keep their order: a lane is in at most one call to the database at a time. Several calls to the
database, on several connections, may be under way for different lanes. Without a lane function each call is a lane of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from postroad.errors import QueueBusyError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_Call: TypeAlias = tuple[Sequence[ItemT], "asyncio.Future[list[ResultT]]"]

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
        lane: Callable[[ItemT], Hashable] | None = None,
    ) -> None:
        self._run = run
        self._parallel = parallel
        self._rows_max = rows_max
        self._item_bytes = item_bytes
        self._calls_waiting_max = calls_waiting_max
        self._lane = lane
        self._lanes: dict[Hashable, deque[_Call[ItemT, ResultT]]] = {}  # the calls that wait, and lanes under way
        self._ready: deque[Hashable] = deque()  # lanes with calls that wait and none under way, the longest waiting first
        self._waiting = 0
        self._workers = 0  # tasks that will look at `_ready` again
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, items: Sequence[ItemT]) -> list[ResultT]:
        """Run the items, after all earlier calls of the same lane. The first item names the lane."""
        if not items:
            return []
        if self._waiting >= self._calls_waiting_max:
            raise QueueBusyError(f"{self._waiting} calls wait for the database already; try again")
        future: asyncio.Future[list[ResultT]] = asyncio.get_running_loop().create_future()
        lane = object() if self._lane is None else self._lane(items[0])
        if lane not in self._lanes:
            self._lanes[lane] = deque()
            self._ready.append(lane)
        self._lanes[lane].append((items, future))
        self._waiting += 1
        if self._workers < self._parallel and self._ready:
            self._start()
        return await future

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work())
        self._workers += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._ready:
            lanes, calls = self._next_calls()
            try:
                await self._run_calls(calls)
            finally:
                self._end(lanes)
        self._workers -= 1

    async def _run_calls(self, calls: list[_Call[ItemT, ResultT]]) -> None:
        try:
            results = await self._run([item for items, _ in calls for item in items])
        except BaseException as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            for _, future in calls:
                if not future.done():
                    future.set_exception(error)
            return
        start = 0
        for items, future in calls:
            if not future.done():
                future.set_result(results[start : start + len(items)])
            start += len(items)

    def _next_calls(self) -> tuple[list[Hashable], list[_Call[ItemT, ResultT]]]:
        """Take what fits into one call to the database, and the lanes it comes from; these are under way until `_end`."""
        lanes: list[Hashable] = []
        calls: list[_Call[ItemT, ResultT]] = []
        rows = size = 0
        full = False
        while self._ready and not full:
            lane = self._ready.popleft()
            waiting, before = self._lanes[lane], len(calls)
            while waiting:
                items = waiting[0][0]
                rows += len(items)
                size += sum(map(self._item_bytes, items))
                full = bool(calls) and (rows > self._rows_max or size > BYTES_MAX)
                if full:
                    break
                calls.append(waiting.popleft())
            if len(calls) > before:
                lanes.append(lane)
            else:
                self._ready.appendleft(lane)
        self._waiting -= len(calls)
        return lanes, calls

    def _end(self, lanes: list[Hashable]) -> None:
        for lane in lanes:
            if self._lanes[lane]:
                self._ready.append(lane)
            else:
                del self._lanes[lane]
