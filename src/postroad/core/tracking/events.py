"""What a broker machine tells its tracker: 16 bytes per id are copied, nothing is hashed.

A driver carries a `Track` order's events to the tracker in order: to another process or thread, or by a call in the simulator.
A machine gathers what it notes for a moment and orders it as few events, in columns (`noted.py`): what an event costs to make, to
carry and to take apart is paid some times a second then, and not for every batch.

The arrays of ids are copies, so that an order that waits keeps no frame in memory. Several events may share one: nobody writes to
them. Structs without cyclic garbage collection; tagged, so that they can be encoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Final, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch import Ids
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, RowNumbers, Span

LONG_ROWS: Final = 16  # on average: rows are copied piece by piece then, and not one by one

Places: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]


class _Event(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    pass


class Published(_Event, frozen=True, gc=False):
    """Messages of a hosted pubend became durable."""

    pubend: int
    ids: Ids


class Routed(_Event, frozen=True, gc=False):
    """Messages came from a neighbour, for the first time; `masks` (routing sets only) say whom they were forwarded to."""

    pubend: int
    upstream: int
    ids: Ids
    masks: Masks | None = None
    neighbours: tuple[int, ...] = ()


class Forwarded(_Event, frozen=True, gc=False):
    """Messages were forwarded to a neighbour (only with `per_neighbour`)."""

    pubend: int
    neighbour: int
    ids: Ids


class Delivered(_Event, frozen=True, gc=False):
    """Messages were sent to a local subscriber."""

    subscriber: str
    pubend: int
    ids: Ids


class Deliveries(_Event, frozen=True, gc=False):
    """Messages of a pubend were sent to local subscribers."""

    subscribers: tuple[str, ...]  # each once
    pubend: int
    ids: Ids  # of all batches, one after the other
    counts: RowNumbers  # how many of them each subscriber was sent,
    rows: RowNumbers  # and which: the first subscriber's first, each one's in the order in which they were sent


def by_name(names: Sequence[str]) -> tuple[tuple[str, ...], Places, Places]:
    """Return each name once, the places of all so that those of each stand together, in order, and where these begin."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # as they come
    whose = np.fromiter(map(numbers.__getitem__, names), np.uint32, len(names))
    few = len(numbers) <= 1 << 16  # numbers of 16 bits are sorted several times faster
    order = np.argsort(whose.astype(np.uint16) if few else whose, kind="stable")
    return tuple(numbers), order, np.searchsorted(whose[order], np.arange(len(numbers)))


def apart(deliveries: Sequence[Deliveries], first_rows: Sequence[int]) -> Iterator[tuple[str, RowNumbers]]:
    """Yield each subscriber once, with the rows of all that it was sent, if the ids of `deliveries` begin in these rows.

    The work per subscriber of each is done by numpy and by iterators written in C: there may be thousands, of one row each.
    """
    names, order, firsts = by_name([*chain.from_iterable(each.subscribers for each in deliveries)])
    rows = np.concatenate([each.rows + np.uint32(first) for each, first in zip(deliveries, first_rows, strict=True)])
    counts = np.concatenate([each.counts for each in deliveries], dtype=np.intp)
    if len(deliveries) > 1:
        starts, counts = (np.cumsum(counts) - counts)[order], counts[order]
        if len(rows) < LONG_ROWS * len(order):
            shifts = starts - (np.cumsum(counts) - counts)
            rows = rows[np.repeat(shifts, counts) + np.arange(len(rows))]
        else:
            stops = starts + counts
            rows = np.concatenate([rows[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
    ends = np.cumsum(np.add.reduceat(counts, firsts)).tolist()
    for name, start, stop in zip(names, [0, *ends[:-1]], ends, strict=True):
        yield name, rows[start:stop]


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | Deliveries | Span | Lost | Links | Horizon
