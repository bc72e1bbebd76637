"""A thread that does blocking work in order and reports back on the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

Job: TypeAlias = Callable[[], None]
ResultT = TypeVar("ResultT")


class Worker:
    """One thread, first in, first out. An executor would do the same with a future per job, at twice the cost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.pending = 0
        self._loop: Final = loop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, work: Callable[[], ResultT], done: Callable[[ResultT], object], failed: Callable[[Exception], object]
    ) -> None:
        """Do `work` in the thread, then call `done` with its result, or `failed`, on the event loop."""
        self.pending += 1

        def job() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  # whatever it is, the owner decides
                self._report(failed, error)
            else:
                self._report(done, result)

        self._jobs.put(job)

    def stop(self) -> None:
        """Finish what was submitted and end the thread; blocks until it has ended."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _report(self, listener: Callable[[ResultT], object], value: ResultT) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(self._finish, listener, value)

    def _finish(self, listener: Callable[[ResultT], object], value: ResultT) -> None:
        self.pending -= 1
        listener(value)
