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
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, RowNumbers, Span


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

    def apart(self, first_row: int = 0) -> Iterator[tuple[str, RowNumbers]]:
        """Yield for each subscriber the rows of what it was sent, if the first id stands in this one."""
        rows = self.rows + np.uint32(first_row)
        start = 0
        for subscriber, stop in zip(self.subscribers, np.cumsum(self.counts).tolist(), strict=True):
            yield subscriber, rows[start:stop]
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
        whose = np.fromiter(map(numbers.__getitem__, names), np.uint32, len(names))
        few = len(numbers) <= 1 << 16  # numbers of 16 bits are sorted several times faster
        order = np.argsort(whose.astype(np.uint16) if few else whose, kind="stable")
        sizes = np.fromiter(map(len, selections), np.uint32, len(names))[order]
        firsts = np.searchsorted(whose[order], np.arange(len(numbers)))
        starts = np.cumsum([0, *(len(batch.ids) for batch in those[:-1])], dtype=np.uint32)
        rows = np.concatenate([selections[each] for each in order.tolist()], dtype=np.uint32, casting="unsafe")
        rows += np.repeat(np.repeat(starts, [len(batch.subscribers) for batch in those])[order], sizes)
        counts = np.add.reduceat(sizes, firsts, dtype=np.uint32)
        yield Deliveries(tuple(numbers), pubend, join([batch.ids for batch in those]), counts, rows)


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
