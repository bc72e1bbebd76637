"""Turns for connections that sent more than is processed at once.

Each turn of the event loop processes a bounded number of frames of each connection, for a bounded time; connections with more
wait here in a circle and are not read meanwhile. A connection that floods is slowed down; the others wait for one of its turns
at most. A connection whose frames are costly is looked at after each of them.

Time is read from `monotonic`: uvloop's clock counts milliseconds, as many as a turn has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic, sleep
from typing import Final, Protocol

FRAMES_PER_SLICE: Final = 8  # after which a connection looks at the clock
SLICES_PER_TURN: Final = 8
QUICK_S: Final = 0.0005  # a slice that took longer is followed by single frames
TURN_S: Final = 0.001  # of one connection
YIELD_S: Final = 0.00005  # without it, threads that come back from the disk hardly ever get the interpreter from a busy loop
ROUND_S: Final = 0.003  # of all waiting connections, in one turn of the loop


class TakesTurns(Protocol):
    """A connection that has received more than it has processed."""

    def take_turn(self) -> bool:
        """Process some frames; tell whether more wait that may be processed now."""


class Turns:
    """Shared by the connections of one owner."""

    __slots__ = ("_loop", "_planned", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._waiting: deque[TakesTurns] = deque()
        self._planned = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: TakesTurns) -> None:
        """Give a connection that is not waiting yet its turn, after those that wait."""
        self._waiting.append(connection)
        self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Give each one turn, as far as the time of this turn of the loop goes; the next one goes on behind them."""
        self._planned = False
        until = monotonic() + ROUND_S
        try:
            for _ in range(len(self._waiting)):
                connection = self._waiting.popleft()
                if connection.take_turn():
                    self._waiting.append(connection)
                if monotonic() >= until:
                    break
        finally:
            if self._waiting:
                sleep(YIELD_S)
                self._plan()
