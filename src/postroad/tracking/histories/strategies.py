"""What an element keeps its ids in: one class per strategy, behind one interface.

`IdKeeper.add` is called for every few ids that a subscriber gets, so it only copies 16 bytes per id into a buffer. Hashing
(`bloom`) and sorting (`exact`) wait until there is something to do for many ids at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE, Masks, RowNumbers
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.types import MESSAGE_ID_BYTES

_ID: Final = np.dtype((np.void, MESSAGE_ID_BYTES))
_ROOM: Final = 8  # ids that a new buffer has room for
_FEW: Final = 64  # ids that are sorted faster one by one
_NO_IDS: Final[Ids] = np.empty(0, _ID)


class Content(NamedTuple):
    """What an element holds, as it goes into an `Element`."""

    strategy: Strategy
    bits: np.ndarray[Any, np.dtype[np.uint8]] | None
    ids: Ids | None


class IdKeeper(Protocol):
    """Takes ids for one element."""

    def add(self, ids: Ids, rows: RowNumbers, masks: Masks | None) -> int:
        """Take the ids in these rows; return by how many bytes the memory in use grew. Nobody writes to the arrays later."""

    def content(self, *, view: bool) -> Content:
        """Return what there is, for ever or as a view that the next `add` may change."""

    def close(self) -> Content:
        """Return what there is; nothing is added any more. Bits may be `Additions` that are still to be made."""


class _Buffer:
    """Ids one after the other in an array that doubles."""

    __slots__ = ("_items", "_room", "used")

    def __init__(self) -> None:
        self._items: Ids = _NO_IDS
        self._room = 0
        self.used = 0

    @property
    def ids(self) -> Ids:
        return self._items[: self.used]

    def add(self, ids: Ids, rows: RowNumbers) -> int:
        used = self.used + len(rows)
        grown = self._grow(used) if used > self._room else 0
        ids.take(rows, out=self._items[self.used : used], mode="clip")  # the mode that writes there at once
        self.used = used
        return grown

    def _grow(self, used: int) -> int:
        before, self._room = self._room, max(used, 2 * self._room, _ROOM)
        larger = np.empty(self._room, _ID)
        larger[: self.used] = self.ids
        self._items = larger
        return (self._room - before) * MESSAGE_ID_BYTES

    @property
    def nbytes(self) -> int:
        return self._room * MESSAGE_ID_BYTES


class AsyncKeeper:
    """The ids in the order in which they came."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = _Buffer()

    def add(self, ids: Ids, rows: RowNumbers, masks: Masks | None) -> int:  # noqa: ARG002 - routing sets are for blooms
        return self._buffer.add(ids, rows)

    def content(self, *, view: bool) -> Content:  # noqa: ARG002 - later ids stand behind these
        return Content(Strategy.ASYNC, None, self._buffer.ids)

    def close(self) -> Content:
        return self.content(view=False)


class ExactKeeper(AsyncKeeper):
    """The ids in order of time when they are written, so that their columns compress; a view is unsorted, hence `async`."""

    __slots__ = ()

    def content(self, *, view: bool) -> Content:
        return super().content(view=True) if view else Content(Strategy.EXACT, None, sort_ids(self._buffer.ids))


class BloomKeeper:
    """The bits, and the ids that are not hashed yet: many at once cost less each, so what is hashed waits in `Additions` as well.

    An element that ends with so few ids that they are shorter than the bits is written as `exact` unless the settings forbid it:
    it has no error. With routing sets it is always a bloom, since only there the masks are a part of the key.
    """

    __slots__ = ("_additions", "_bits", "_few", "_ids", "_m", "_masks", "_worth")

    def __init__(self, settings: TrackingSettings, additions: blooms.Additions, *, masked: bool) -> None:
        self._additions = additions
        self._m = settings.m
        shorter = settings.m // (8 * MESSAGE_ID_BYTES)
        self._few = max(shorter, _ROOM) if settings.few_as_ids and not masked else 0
        self._worth = min(settings.n, blooms.WORTH)
        self._masks: list[Masks] | None = [] if masked else None
        self._ids = _Buffer()
        self._bits: blooms.Bits | None = None

    def add(self, ids: Ids, rows: RowNumbers, masks: Masks | None) -> int:
        if self._masks is not None and masks is None:
            masks = np.zeros(len(rows), np.uint64)
        waiting = self._ids.used + len(rows)
        grown = 0
        if self._bits is None and waiting > self._few:
            self._bits = blooms.empty(self._m)
            grown = self._bits.nbytes
        if self._bits is not None and waiting >= self._worth:
            self._hash(self._bits)
            self._additions.add(self._bits, ids, rows, masks)
            return grown - self._forget()
        if self._masks is not None and masks is not None:
            self._masks.append(masks.astype(np.uint64))
        return grown + self._ids.add(ids, rows)

    def content(self, *, view: bool) -> Content:
        if self._bits is None:
            ids = self._ids.ids
            return Content(Strategy.ASYNC, None, ids) if view else Content(Strategy.EXACT, None, sort_ids(ids))
        self._hash(self._bits)
        self._additions.make()
        return Content(Strategy.BLOOM, self._bits if view else self._bits.copy(), None)

    def close(self) -> Content:
        if self._bits is None:
            return self.content(view=False)
        self._hash(self._bits)
        return Content(Strategy.BLOOM, self._bits, None)

    def _hash(self, bits: blooms.Bits) -> None:
        """Have the ids that wait added to the bits."""
        if self._ids.used:
            self._additions.add(bits, self._ids.ids, None, np.concatenate(self._masks) if self._masks else None)

    def _forget(self) -> int:
        """Forget the ids that are hashed, or will be; return the bytes they took."""
        hashed, self._ids = self._ids, _Buffer()  # and do not write to where they stand
        if self._masks is not None:
            self._masks.clear()
        return hashed.nbytes


def keeper(settings: TrackingSettings, additions: blooms.Additions, *, masked: bool = False) -> IdKeeper:
    match settings.strategy:
        case Strategy.BLOOM:
            return BloomKeeper(settings, additions, masked=masked)
        case Strategy.EXACT:
            return ExactKeeper()
        case Strategy.ASYNC:
            return AsyncKeeper()
        case Strategy.NULL:
            raise AssertionError("nothing is kept under the strategy null")


def capacity(settings: TrackingSettings) -> int:
    """Return how many ids an element takes."""
    return settings.n if settings.strategy is Strategy.BLOOM else settings.ids_max


def sort_ids(ids: Ids) -> Ids:
    """Return ids in order of their ticks, those of one tick in order of their publishers; a copy."""
    if len(ids) <= _FEW:
        single: list[Any] = ids.tolist()
        single.sort(key=_tick_and_publisher)
        return np.frombuffer(b"".join(single), _ID)
    fields = np.ascontiguousarray(ids).view(ID_DTYPE)
    return ids[np.lexsort((fields["publisher"].astype(np.uint32), fields["tick"].astype(np.uint64)))]


def _tick_and_publisher(message_id: bytes) -> bytes:
    return message_id[8:] + message_id[:4]
