"""What a broker machine tells its tracker. Cheap to make: 16 bytes per id are copied, nothing is hashed.

A driver carries a `Track` order's events to the tracker in order: to another process or thread, or by a call in the simulator.

The arrays of ids are copies, so that an event that waits keeps no frame in memory. Several events of a turn may share one: nobody
writes to them. Made for every delivery, hence structs without cyclic garbage collection; tagged, so that they can be encoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Final, Self, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch import Ids
from postroad.core.streams.selection import Rows
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, Span

RowNumbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]
_NO_ROWS: Final[RowNumbers] = np.empty(0, np.uint32)


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


class DeliveredRows(_Event, frozen=True, gc=False):
    """Messages of one batch were sent to local subscribers, to each those of its selection.

    What `Delivered` says for each of them, at the price of one object: the machine notes it for every batch it delivers. All
    subscribers of a selection share it.
    """

    subscribers: tuple[str, ...]
    pubend: int
    ids: Ids  # of the whole batch
    rows: RowNumbers  # of the selections, one after the other
    counts: tuple[int, ...]  # rows of each selection
    chosen: tuple[int, ...] = ()  # the selection of each subscriber; empty: they stand in the order of the subscribers

    @classmethod
    def of(cls, subscribers: Sequence[str], pubend: int, ids: Ids, selections: Sequence[Rows]) -> Self:
        """Join selections; those that are the same object are kept once."""
        distinct = {id(rows): rows for rows in selections}
        chosen: tuple[int, ...] = ()
        if len(distinct) < len(selections):
            numbers = dict(zip(distinct, count(), strict=False))
            chosen = tuple(numbers[id(rows)] for rows in selections)
        joined = np.concatenate(list(distinct.values()) or [_NO_ROWS]).astype(np.uint32)  # quicker than to join with this type
        return cls(tuple(subscribers), pubend, ids, joined, tuple(map(len, distinct.values())), chosen)

    def by_subscriber(self) -> tuple[RowNumbers, tuple[int, ...]]:
        """Return the rows of all subscribers, one after the other, and how many each has."""
        if not self.chosen:
            return self.rows, self.counts
        parts = np.split(self.rows, np.cumsum(self.counts[:-1]))
        return np.concatenate([parts[number] for number in self.chosen]), tuple(self.counts[number] for number in self.chosen)


class Deliveries(_Event, frozen=True, gc=False):
    """Messages of a pubend were sent to local subscribers, in this order: many `DeliveredRows` in columns."""

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
        sent = [batch.by_subscriber() for batch in those]
        sizes = np.fromiter(chain.from_iterable(counts for _, counts in sent), np.intp)
        names = chain.from_iterable(batch.subscribers for batch in those)
        whose = np.repeat(np.fromiter(map(numbers.__getitem__, names), np.uint32, len(sizes)), sizes)
        starts = np.cumsum([0, *(len(batch.ids) for batch in those[:-1])])
        rows = np.concatenate([rows for rows, _ in sent]) + np.repeat(starts, [len(rows) for rows, _ in sent]).astype(np.uint32)
        yield Deliveries(tuple(numbers), pubend, join([batch.ids for batch in those]), rows, whose)


def joined(events: Iterable[TrackEvent]) -> tuple[TrackEvent, ...]:
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


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | DeliveredRows | Deliveries | Span | Lost | Links | Horizon
