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
from itertools import count
from typing import Final, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories.elements import Horizon, Links, Lost, Masks, RowNumbers, Span

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
    """Messages of a pubend were sent to local subscribers: selections of them, in the order in which they were sent."""

    subscribers: tuple[str, ...]  # each once
    pubend: int
    ids: Ids  # of all batches, one after the other
    whose: RowNumbers  # the place of its subscriber, for each selection,
    counts: RowNumbers  # how many ids it has,
    rows: RowNumbers  # and which: the first selection's first


def apart(deliveries: Sequence[Deliveries], first_rows: Sequence[int]) -> Iterator[tuple[str, RowNumbers]]:
    """Yield each subscriber once, with the rows of all that it was sent, if the ids of `deliveries` begin in these rows.

    The work per selection is done by numpy, that per subscriber of each by iterators written in C: there may be thousands.
    """
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # as they come
    places = [np.fromiter(map(numbers.__getitem__, each.subscribers), np.uint32, len(each.subscribers)) for each in deliveries]
    whose = np.concatenate([place[each.whose] for place, each in zip(places, deliveries, strict=True)])
    rows = np.concatenate([each.rows + np.uint32(first) for each, first in zip(deliveries, first_rows, strict=True)])
    counts = np.concatenate([each.counts for each in deliveries], dtype=np.intp)
    if (whose[1:] < whose[:-1]).any():
        few = len(numbers) <= 1 << 16  # numbers of 16 bits are sorted several times faster
        order = np.argsort(whose.astype(np.uint16) if few else whose, kind="stable")
        rows = _reorder(rows, counts, order)
        whose, counts = whose[order], counts[order]
    firsts = np.searchsorted(whose, np.arange(len(numbers)))
    ends = np.cumsum(np.add.reduceat(counts, firsts)).tolist()
    for name, start, stop in zip(numbers, [0, *ends[:-1]], ends, strict=True):
        yield name, rows[start:stop]


def _reorder(rows: RowNumbers, counts: Places, order: Places) -> RowNumbers:
    """Return the rows of all selections, the selections in another order."""
    starts, counts = (np.cumsum(counts) - counts)[order], counts[order]
    if len(rows) < LONG_ROWS * len(order):
        shifts = starts - (np.cumsum(counts) - counts)
        return rows[np.repeat(shifts, counts) + np.arange(len(rows))]
    stops = starts + counts
    return np.concatenate([rows[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | Deliveries | Span | Lost | Links | Horizon
