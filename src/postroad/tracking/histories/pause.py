"""Long work in small pieces: code that goes through many things calls its `Pause` after each.

Threads share one interpreter. One that computes for ten milliseconds slows an event loop down to next to nothing meanwhile, since
each system call of the loop hands the interpreter over. Who works beside a loop gives a pause that sleeps now and then; others
give none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Pause: TypeAlias = Callable[[], None]


def no_pause() -> None:
    """Go on."""
