"""What leaves at the end of a turn of the event loop.

Each connection that was given something to send is flushed once, however many frames it was given. Whoever makes frames for many
connections at once does it `during` a turn of its own, and they leave when that is done: the alternative, a callback per
connection, costs a turn of the loop with a look at every socket before the first of them leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

Flush: TypeAlias = Callable[[], None]


class FlushScheduler:
    """Shared by the connections of one owner."""

    __slots__ = ("_inside", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._waiting: list[Flush] = []
        self._inside = False

    def add(self, flush: Flush) -> None:
        """Call `flush` at the end of this turn."""
        if not self._waiting and not self._inside:
            self._loop.call_soon(self._flush)
        self._waiting.append(flush)

    def during(self, act: Callable[[], None]) -> None:
        """Do something, then write what was sent meanwhile or waited before."""
        self._inside = True
        try:
            act()
        finally:
            self._inside = False
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            try:
                flush()
            except Exception as error:  # noqa: BLE001  # as for any callback of the loop: the others must not suffer
                self._loop.call_exception_handler({"message": "cannot write to a connection", "exception": error})
