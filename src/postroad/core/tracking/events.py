"""What a broker machine tells its tracker: 16 bytes per id are copied, nothing is hashed.

A driver carries a `Track` order's events to the tracker in order: to another process or thread, or by a call in the simulator.
A machine gathers what it notes for a moment and orders it as few events, in columns (`joined`): what an event costs to make, to
carry and to take apart is paid some times a second then, and not for every batch.

The arrays of ids are copies, so that an order that waits keeps no frame in memory. Several events may share one: nobody writes to
them. Structs without cyclic garbage collection; tagged, so that they can be encoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch import Ids
from postroad.core.streams.selection import Rows
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, Span

RowNumbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]


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
    """Messages of a pubend were sent to local subscribers, in this order."""

    subscribers: tuple[str, ...]  # each once
    pubend: int
    ids: Ids  # of all batches, one after the other
    rows: RowNumbers  # of these ids, one per delivery
    whose: RowNumbers  # and to which of the subscribers

    def apart(self) -> Iterator[Delivered]:
        """Yield what was sent to each subscriber, in the order in which it was sent."""
        few = len(self.subscribers) <= 1 << 16  # numbers of 16 bits are sorted several times faster
        ids: Ids = self.ids[self.rows[np.argsort(self.whose.astype(np.uint16) if few else self.whose, kind="stable")]]
        start = 0
        stops = np.cumsum(np.bincount(self.whose, minlength=len(self.subscribers))).tolist()
        for subscriber, stop in zip(self.subscribers, stops, strict=True):
            yield Delivered(subscriber, self.pubend, ids[start:stop])
            start = stop


class DeliveredRows(NamedTuple):
    """Messages of one batch were sent to local subscribers, to each those of its selection. For the notes of a machine only.

    It keeps what the machine has in hand, as it is, since one is made for every batch: `joined` makes `Deliveries` of many.
    """

    subscribers: Sequence[str]
    pubend: int
    ids: Ids  # of the whole batch
    selections: Sequence[Rows]


def in_columns(batches: Iterable[DeliveredRows], join: Callable[[list[Ids]], Ids] = np.concatenate) -> Iterator[Deliveries]:
    """Join what was delivered, by pubend.

    The work per delivery is done by numpy and by iterators written in C: there may be thousands, of one row each.
    """
    by_pubend: dict[int, list[DeliveredRows]] = {}
    for batch in batches:
        if batch.subscribers:
            by_pubend.setdefault(batch.pubend, []).append(batch)
    for pubend, those in by_pubend.items():
        numbers: defaultdict[str, int] = defaultdict(count().__next__)  # of subscribers, as they come
        names = list(chain.from_iterable(batch.subscribers for batch in those))
        selections = list(chain.from_iterable(batch.selections for batch in those))
        sizes = np.fromiter(map(len, selections), np.intp, len(names))
        whose = np.repeat(np.fromiter(map(numbers.__getitem__, names), np.uint32, len(names)), sizes)
        starts = np.cumsum([0, *(len(batch.ids) for batch in those[:-1])])
        shifts = np.repeat(np.repeat(starts, [len(batch.subscribers) for batch in those]), sizes)
        rows = (np.concatenate(selections) + shifts).astype(np.uint32)
        yield Deliveries(tuple(numbers), pubend, join([batch.ids for batch in those]), rows, whose)


def joined(events: Iterable[TrackEvent | DeliveredRows]) -> tuple[TrackEvent, ...]:
    """Return few events that say the same as many. What explains messages, spans above all, comes after the messages.

    Events that shared their ids, since they tell of the same batches, still do.
    """
    messages: dict[tuple[int, int, int], list[Published | Routed | Forwarded]] = {}
    batches: list[DeliveredRows] = []
    others: list[TrackEvent] = []
    for event in events:
        match event:
            case DeliveredRows():
                batches.append(event)
            case Published():
                messages.setdefault((0, event.pubend, 0), []).append(event)
            case Routed(masks=None):
                messages.setdefault((1, event.pubend, event.upstream), []).append(event)
            case Forwarded():
                messages.setdefault((2, event.pubend, event.neighbour), []).append(event)
            case _:
                others.append(event)
    known: dict[tuple[int, ...], Ids] = {}

    def join(arrays: list[Ids]) -> Ids:
        names = tuple(map(id, arrays))
        if names not in known:
            known[names] = np.concatenate(arrays)
        return known[names]

    those = [msgspec.structs.replace(each[0], ids=join([event.ids for event in each])) for each in messages.values()]
    return (*those, *in_columns(batches, join), *others)


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | Deliveries | Span | Lost | Links | Horizon
