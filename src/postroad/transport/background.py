"""An event loop in a thread, for callers that have none, and the blocking twins of asyncio classes.

A twin is a subclass of `Blocking` that lists the methods of the asyncio class it offers, one line each:

    class SyncQueueClient(Blocking[QueueClient]):
        put = wait_for(QueueClient.put)
        read_messages = iterate(QueueClient.read_messages)

Each has the parameters, types and documentation of the original. Other methods are written out where the result needs a twin
of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from postroad.transport.loops import new_event_loop

InnerT = TypeVar("InnerT")
ResultT = TypeVar("ResultT")
TwinT = TypeVar("TwinT")
P = ParamSpec("P")


class BackgroundLoop:
    """Runs coroutines for threads that wait for them. `stop` ends the thread."""

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine and return its result. An interrupted caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_to_the_end(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine and return its result. An interrupted caller cancels it, and waits until it has ended."""
        ended = threading.Event()

        async def run_and_tell() -> ResultT:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run_and_tell(), self._loop)
        try:
            # Python can miss a Ctrl-C that comes just before a thread begins to wait; it sees it when the thread wakes.
            while not concurrent.futures.wait([future], timeout=1).done:
                pass
            return future.result()
        except BaseException:
            if not future.done() and future.cancel():
                ended.wait()
            raise

    def iterate(self, items: AsyncIterator[ResultT]) -> Iterator[ResultT]:
        """Yield what an asynchronous iterator yields; each item is fetched when it is asked for."""

        async def fetch() -> tuple[ResultT] | None:
            async for item in items:
                return (item,)
            return None

        while (fetched := self.call(fetch())) is not None:
            yield fetched[0]

    def stop(self) -> None:
        """Cancel what still runs and end the thread."""
        if self._thread.is_alive():
            self.call(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Blocking(Generic[InnerT]):
    """Base of the blocking twins: `inner` lives in the thread of `loop`."""

    def __init__(self, loop: BackgroundLoop, inner: InnerT) -> None:
        self.loop = loop
        self.inner = inner

    def __enter__(self) -> Self:
        return self


def wait_for(method: Callable[Concatenate[InnerT, P], Coroutine[Any, Any, ResultT]]) -> Callable[Concatenate[Any, P], ResultT]:
    """Offer a coroutine method: call it in the loop and wait for its result."""

    @functools.wraps(method)
    def call(self: Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self.loop.call(method(self.inner, *args, **kwargs))

    return call


def wait_for_twin(
    method: Callable[Concatenate[InnerT, P], Coroutine[Any, Any, ResultT]], twin: Callable[[BackgroundLoop, ResultT], TwinT]
) -> Callable[Concatenate[Any, P], TwinT]:
    """Offer a coroutine method whose result has a blocking twin, or is made of such."""

    @functools.wraps(method)
    def call(self: Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> TwinT:
        return twin(self.loop, self.loop.call(method(self.inner, *args, **kwargs)))

    return call


def run(method: Callable[Concatenate[InnerT, P], ResultT]) -> Callable[Concatenate[Any, P], ResultT]:
    """Offer a plain method which has to run in the thread of the loop."""

    @functools.wraps(method)
    def call(self: Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        async def run_there() -> ResultT:
            return method(self.inner, *args, **kwargs)

        return self.loop.call(run_there())

    return call


def iterate(
    method: Callable[Concatenate[InnerT, P], AsyncIterator[ResultT]],
) -> Callable[Concatenate[Any, P], Iterator[ResultT]]:
    """Offer a method that returns an asynchronous iterator."""

    @functools.wraps(method)
    def call(self: Blocking[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[ResultT]:
        return self.loop.iterate(method(self.inner, *args, **kwargs))

    return call
