"""Records, kept as they come and made into few events when they are taken.

A batch is noted hundreds of times a second, often with few messages, amid other work that has the processor's caches. There a
call costs several times what it costs in a loop, and a numpy call may hand the interpreter to another thread while messages
wait to be sent. So noting only keeps what it is given; the work on it is done for hundreds of messages in one go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.core.batch.message import ids_of
from postroad.core.batch.selection import Rows
from postroad.tracking.histories.events import Deliveries, Forwarded, Published, Routed, TrackEvent

IdPieces: TypeAlias = Sequence[bytes]  # of a batch: joined, its ids stand one after the other


class _Sent:
    """Batches of a pubend that were sent to subscribers, and to whom which rows of them."""

    __slots__ = ("counts", "ids", "selections", "sizes", "subscribers")

    def __init__(self) -> None:
        self.ids: list[IdPieces] = []  # of each batch,
        self.counts: list[int] = []  # how many they are,
        self.sizes: list[int] = []  # in how many selections it was sent,
        self.subscribers: list[str] = []  # to whom each of them, one batch's after the other's,
        self.selections: list[Rows] = []  # and which of its rows

    def add(self, ids: IdPieces, size: int, subscribers: Sequence[str], selections: Sequence[Rows]) -> None:
        self.ids.append(ids)
        self.counts.append(size)
        self.sizes.append(len(selections))
        self.subscribers.extend(subscribers)
        self.selections.extend(selections)

    def together(self, pubend: int, ids: Ids) -> Deliveries:
        names = dict(zip(dict.fromkeys(self.subscribers), count(), strict=False))  # numbered as they come
        whose = np.fromiter(map(names.__getitem__, self.subscribers), np.uint32, len(self.subscribers))
        counts = np.fromiter(map(len, self.selections), np.uint32, len(self.selections))
        begins = np.cumsum([0, *self.counts[:-1]])
        firsts = np.repeat(begins, self.sizes)  # the row in which the batch of each selection begins
        rows = np.concatenate(self.selections, dtype=np.uint32, casting="unsafe")
        rows += np.repeat(firsts, counts).astype(np.uint32)
        return Deliveries(tuple(names), pubend, ids, whose, counts, rows)


class EventBuffer:
    """Events since they were taken last. What is given must not change until then."""

    __slots__ = ("_messages", "_sent", "others")

    def __init__(self) -> None:
        self._messages: defaultdict[tuple[Any, ...], list[IdPieces]] = defaultdict(list)  # (kind, pubend, perhaps a neighbour)
        self._sent: defaultdict[int, _Sent] = defaultdict(_Sent)
        self.others: list[TrackEvent] = []

    def published(self, pubend: int, ids: IdPieces) -> None:
        self._messages[Published, pubend].append(ids)

    def routed(self, pubend: int, upstream: int, ids: IdPieces) -> None:
        self._messages[Routed, pubend, upstream].append(ids)

    def forwarded(self, pubend: int, neighbour: int, ids: IdPieces) -> None:
        self._messages[Forwarded, pubend, neighbour].append(ids)

    def delivered(self, pubend: int, ids: IdPieces, size: int, subscribers: Sequence[str], selections: Sequence[Rows]) -> None:
        self._sent[pubend].add(ids, size, subscribers, selections)

    def take(self) -> tuple[TrackEvent, ...]:
        """Return few events. What explains messages, spans above all, comes after the messages.

        Events of the same batches share their ids.
        """
        known: dict[tuple[int, int], tuple[list[IdPieces], Ids]] = {}

        def join(parts: list[IdPieces]) -> Ids:
            name = (len(parts), id(parts[0]))
            before = known.get(name)
            if before is None or before[0] != parts:
                before = known[name] = (parts, ids_of(b"".join(chain.from_iterable(parts))))
            return before[1]

        taken: list[TrackEvent] = [kind(*which, join(parts)) for (kind, *which), parts in self._messages.items()]
        taken += [sent.together(pubend, join(sent.ids)) for pubend, sent in self._sent.items() if sent.subscribers]
        taken += self.others
        self._messages.clear()
        self._sent.clear()
        self.others.clear()
        return tuple(taken)
