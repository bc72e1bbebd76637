"""What waits to leave on one connection: two priorities, bounded in bytes.

On a link between brokers control frames leave before data frames, and data is dropped when its bound is reached: a dropped
batch is a gap downstream and is asked for again. Control is never dropped; a link whose control backlog passes its bound is
beyond help and is closed by its owner.

On a client's connection everything but heartbeats stays in one order, since a position must not overtake the rows below it, and
nothing is dropped: the owner is told when the backlog passes its high mark and sends no more rows until the low one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | memoryview

FRAME_COST: Final = 160  # of a waiting frame beside its bytes


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    data_bytes_max: int = 16 << 20
    control_bytes_max: int = 16 << 20
    high_bytes: int = 4 << 20
    low_bytes: int = 1 << 20


class Outbox:
    """Frames as lists of buffers. `ordered` gives data the nature of a client's connection."""

    __slots__ = ("_control", "_data", "control_bytes", "data_bytes", "dropped_bytes", "dropped_frames", "limits", "ordered")

    def __init__(self, limits: OutboxLimits, *, ordered: bool) -> None:
        self.limits = limits
        self.ordered = ordered
        self.control_bytes = 0
        self.data_bytes = 0
        self.dropped_frames = 0
        self.dropped_bytes = 0
        self._control: deque[tuple[int, list[Buffer]]] = deque()
        self._data: deque[tuple[int, list[Buffer]]] = deque()

    def __len__(self) -> int:
        return self.control_bytes + self.data_bytes

    @property
    def held(self) -> int:
        """The memory that waiting frames take, about: for small ones it is mostly what is around them."""
        return self.control_bytes + self.data_bytes + FRAME_COST * (len(self._control) + len(self._data))

    def put(self, frame: list[Buffer], *, control: bool) -> bool:
        """Take a frame; False when it was dropped."""
        size = sum(map(len, frame))
        if control:
            self._control.append((size, frame))
            self.control_bytes += size
            return True
        if not self.ordered and self._data and self.data_bytes + size > self.limits.data_bytes_max:  # one frame always fits
            self.dropped_frames += 1
            self.dropped_bytes += size
            return False
        self._data.append((size, frame))
        self.data_bytes += size
        return True

    @property
    def overflown(self) -> bool:
        """Whether what must not be dropped has passed its bound."""
        limits = self.limits
        control = self.control_bytes + FRAME_COST * len(self._control)
        return control > limits.control_bytes_max or (self.ordered and self.held > limits.data_bytes_max)

    def take(self, bytes_max: int, *, with_data: bool = True) -> tuple[list[Buffer], int]:
        """Return the buffers to write next, at most about this many bytes but at least one frame, and their bytes."""
        buffers: list[Buffer] = []
        room = bytes_max
        while self._control and room > 0:
            size, frame = self._control.popleft()
            self.control_bytes -= size
            room -= size
            buffers += frame
        while with_data and self._data and room > 0:
            size, frame = self._data.popleft()
            self.data_bytes -= size
            room -= size
            buffers += frame
        return buffers, bytes_max - room

    def clear(self) -> None:
        self._control.clear()
        self._data.clear()
        self.control_bytes = self.data_bytes = 0
