"""The virtual world: one clock, one event heap, one seed.

Nothing happens between two events, and two events never happen at once: they are ordered by (time, order of creation). All
chance comes from named streams derived from the seed, so that a change to, say, the workload's draws does not move the
faults. Everything worth telling goes through `note`, which feeds the digest of the run; two runs of one seed have the same
digest, and with `story` the notes are kept to be read.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import xxhash

EVENTS_MAX: Final = 5_000_000  # a run that reaches this is livelocked
STORY_LINES_MAX: Final = 200_000


class LivelockError(AssertionError):
    """More events than any sane run has: some machine answers itself for ever."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the story of a run."""

    at: float
    kind: str
    text: str


class Timer:
    """An event that may be called off."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class World:
    """Virtual time, and what happens in it."""

    def __init__(self, seed: int, *, story: bool = False) -> None:
        self.seed: Final = seed
        self.now = 0.0
        self.events = 0
        self.story: list[Line] | None = [] if story else None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._digest = xxhash.xxh3_128()
        self._stopped = False

    def chance(self, name: str) -> random.Random:
        """Return the stream of chance of this name; ask once and keep it."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 - reproducible by design

    def at(self, when: float, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen at a time; one that has passed means now, after what is due already."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self.now), self._order, action, args))

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, action, *args)

    def timer(self, when: float, action: Callable[[], None]) -> Timer:
        timer = Timer(max(when, self.now), action)
        self.at(when, self._ring, timer)
        return timer

    @staticmethod
    def _ring(timer: Timer) -> None:
        if timer.action is not None:
            timer.action()

    def run(self, until: float) -> None:
        """Let everything happen that is due up to a time, then be at that time."""
        heap = self._heap
        self._stopped = False
        while heap and heap[0][0] <= until and not self._stopped:
            when, _, action, args = heapq.heappop(heap)
            self.now = when
            self.events += 1
            if self.events > EVENTS_MAX:
                raise LivelockError(f"{EVENTS_MAX} events by {self.now:.3f} s")
            action(*args)
        if not self._stopped:
            self.now = max(self.now, until)

    def stop(self) -> None:
        """Make the current `run` return after this event."""
        self._stopped = True

    def trace(self, data: bytes) -> None:
        """Put bytes that were sent or stored into the digest, without a line in the story."""
        self._digest.update(data)

    def note(self, kind: str, text: str) -> None:
        self._digest.update(f"{self.now!r} {kind} {text}\n".encode())
        if self.story is not None and len(self.story) < STORY_LINES_MAX:
            self.story.append(Line(self.now, kind, text))

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
