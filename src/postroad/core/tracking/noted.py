"""What was noted, in columns from the beginning: a batch costs a few appends, and many become few events.

A batch is noted thousands of times a second, often with one message for one subscriber, so no object is made for it. What the
machine has in hand is kept as it is until it is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from postroad.core.batch import Ids
from postroad.core.streams.selection import Rows
from postroad.core.tracking.events import Deliveries, Forwarded, Published, Routed, TrackEvent, by_name


class _Sent:
    """Batches of a pubend that were sent to subscribers, and to whom which rows of them."""

    __slots__ = ("ids", "names", "numbers", "selections")

    def __init__(self) -> None:
        self.ids: list[Ids] = []  # of each batch,
        self.numbers: list[int] = []  # and of the subscribers it was sent to;
        self.names: list[str] = []  # of these, one batch's after the other's,
        self.selections: list[Rows] = []  # and what each was sent

    def together(self, pubend: int, join: Callable[[list[Ids]], Ids]) -> Iterator[Deliveries]:
        if not self.names:
            return
        names, order, firsts = by_name(self.names)
        sizes = np.fromiter(map(len, self.selections), np.uint32, len(order))[order]
        starts = np.cumsum([0, *map(len, self.ids[:-1])], dtype=np.uint32)
        rows = np.concatenate([self.selections[each] for each in order.tolist()], dtype=np.uint32, casting="unsafe")
        rows += np.repeat(np.repeat(starts, self.numbers)[order], sizes)
        yield Deliveries(names, pubend, join(self.ids), np.add.reduceat(sizes, firsts, dtype=np.uint32), rows)


class Noted:
    """Events since they were taken last."""

    __slots__ = ("_messages", "_sent", "others")

    def __init__(self) -> None:
        self._messages: defaultdict[tuple[Any, ...], list[Ids]] = defaultdict(list)  # (kind, pubend, perhaps a neighbour)
        self._sent: defaultdict[int, _Sent] = defaultdict(_Sent)
        self.others: list[TrackEvent] = []

    def published(self, pubend: int, ids: Ids) -> None:
        self._messages[Published, pubend].append(ids)

    def routed(self, pubend: int, upstream: int, ids: Ids) -> None:
        self._messages[Routed, pubend, upstream].append(ids)

    def forwarded(self, pubend: int, neighbour: int, ids: Ids) -> None:
        self._messages[Forwarded, pubend, neighbour].append(ids)

    def delivered(self, pubend: int, ids: Ids, subscribers: Sequence[str], selections: Sequence[Rows]) -> None:
        sent = self._sent[pubend]
        sent.ids.append(ids)
        sent.numbers.append(len(subscribers))
        sent.names += subscribers
        sent.selections += selections

    def take(self) -> tuple[TrackEvent, ...]:
        """Return few events. What explains messages, spans above all, comes after the messages.

        Events of the same batches share their ids.
        """
        known: dict[tuple[int, ...], Ids] = {}

        def join(arrays: list[Ids]) -> Ids:
            names = tuple(map(id, arrays))
            if names not in known:
                known[names] = np.concatenate(arrays)
            return known[names]

        taken: list[TrackEvent] = [kind(*which, join(arrays)) for (kind, *which), arrays in self._messages.items()]
        for pubend, sent in self._sent.items():
            taken += sent.together(pubend, join)
        taken += self.others
        self._messages.clear()
        self._sent.clear()
        self.others.clear()
        return tuple(taken)
