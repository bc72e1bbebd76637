"""What a broker machine tells its tracker. Cheap to make: 16 bytes per id are copied, nothing is hashed.

A driver carries a `Track` order's events to the tracker in order; in a process that is another thread, in the simulator a call.

The arrays of ids are copies, so that an event that waits keeps no frame in memory. Several events of a turn may share one: nobody
writes to them. Made for every delivery, hence structs without cyclic garbage collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def deliveries(batches: Sequence[DeliveredRows]) -> Iterator[Delivered]:
    """Yield what was sent to each subscriber, batch by batch; their ids are taken out all at once."""
    if not batches:
        return
    starts = np.cumsum([0, *(len(batch.ids) for batch in batches[:-1])])
    counts = [sum(map(len, batch.selections)) for batch in batches]
    rows = np.concatenate([selection for batch in batches for selection in batch.selections]) + np.repeat(starts, counts)
    ids: Ids = np.concatenate([batch.ids for batch in batches])[rows]
    start = 0
    for batch in batches:
        for subscriber, selection in zip(batch.subscribers, batch.selections, strict=True):
            stop = start + len(selection)
            yield Delivered(subscriber, batch.pubend, ids[start:stop])
            start = stop


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | DeliveredRows | Span | Lost | Links | Horizon
