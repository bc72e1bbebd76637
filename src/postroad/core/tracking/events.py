"""What a broker machine tells its tracker. Cheap to make: 16 bytes per id are copied, nothing is hashed.

A driver carries a `Track` order's events to the tracker in order; in a process that is another thread, in the simulator a call.

The arrays of ids are copies, so that an event that waits keeps no frame in memory. Several events of a turn may share one: nobody
writes to them. Made for every delivery, hence structs without cyclic garbage collection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import TypeAlias

import msgspec
import numpy as np

from postroad.core.batch import Ids
from postroad.core.streams.selection import Rows
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, Span


class Published(msgspec.Struct, frozen=True, gc=False):
    """Messages of a hosted pubend became durable."""

    pubend: int
    ids: Ids


class Routed(msgspec.Struct, frozen=True, gc=False):
    """Messages came from a neighbour, for the first time; `masks` (routing sets only) say whom they were forwarded to."""

    pubend: int
    upstream: int
    ids: Ids
    masks: Masks | None = None
    neighbours: tuple[int, ...] = ()


class Forwarded(msgspec.Struct, frozen=True, gc=False):
    """Messages were forwarded to a neighbour (only with `per_neighbour`)."""

    pubend: int
    neighbour: int
    ids: Ids


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """Messages were sent to a local subscriber."""

    subscriber: str
    pubend: int
    ids: Ids


class DeliveredRows(msgspec.Struct, frozen=True, gc=False):
    """Messages of one batch were sent to local subscribers, to each those at the rows of its selection.

    What `Delivered` says for each of them, at the price of one object: the machine notes it for every batch it delivers.
    """

    subscribers: tuple[str, ...]
    pubend: int
    ids: Ids  # of the whole batch
    selections: tuple[Rows, ...]


def deliveries(batches: Iterable[DeliveredRows]) -> Iterator[Delivered]:
    """Yield what was sent to each subscriber from each pubend, in the order in which it was sent.

    The work per delivery is done by numpy and by iterators written in C: there may be thousands, of one row each.
    """
    by_pubend: dict[int, list[DeliveredRows]] = {}
    for batch in batches:
        if batch.selections:
            by_pubend.setdefault(batch.pubend, []).append(batch)
    for pubend, those in by_pubend.items():
        numbers: defaultdict[str, int] = defaultdict(count().__next__)  # of subscribers, as they come
        selections = [selection for batch in those for selection in batch.selections]
        names = chain.from_iterable(batch.subscribers for batch in those)
        whose = np.fromiter(map(numbers.__getitem__, names), np.intp, len(selections))
        sizes = np.fromiter(map(len, selections), np.intp, len(selections))
        starts = np.cumsum([0, *(len(batch.ids) for batch in those[:-1])])
        rows = np.concatenate(selections) + np.repeat(np.repeat(starts, [len(batch.selections) for batch in those]), sizes)
        whose = np.repeat(whose, sizes)
        ids: Ids = np.concatenate([batch.ids for batch in those])[rows[np.argsort(whose, kind="stable")]]
        start = 0
        for subscriber, stop in zip(numbers, np.cumsum(np.bincount(whose, minlength=len(numbers))).tolist(), strict=True):
            yield Delivered(subscriber, pubend, ids[start:stop])
            start = stop


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | DeliveredRows | Span | Lost | Links | Horizon
