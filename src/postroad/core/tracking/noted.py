"""What was noted, in columns from the beginning: a batch costs a few appends, and many become few events.

A batch is noted thousands of times a second, often with one message for one subscriber, so no object is made for it. All of it is
put where it belongs at once, while it is in the processor's caches: what is taken together later waits for a message more.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from postroad.core.batch import Ids
from postroad.core.messages import ids_of
from postroad.core.streams.selection import Rows
from postroad.core.tracking.events import Deliveries, Forwarded, Published, Routed, TrackEvent
from postroad.types import MESSAGE_ID_BYTES


def _numbers() -> array[int]:
    return array("I")


class _Sent:
    """Batches of a pubend that were sent to subscribers, and to whom which rows of them."""

    __slots__ = ("counts", "ids", "names", "rows", "size", "whose")

    def __init__(self) -> None:
        self.ids: list[bytes] = []  # of each batch,
        self.size = 0  # and how many they are
        self.names: defaultdict[str, int] = defaultdict(count().__next__)  # subscribers, numbered as they come
        self.whose = _numbers()  # of each selection, one batch's after the other's,
        self.counts = _numbers()  # how many rows it has,
        self.rows = _numbers()  # and which, among all

    def add(self, ids: bytes, subscribers: Sequence[str], selections: Sequence[Rows]) -> None:
        first = self.size
        self.ids.append(ids)
        self.size = first + len(ids) // MESSAGE_ID_BYTES
        if len(selections) == 1 and len(selections[0]) == 1:
            self.whose.append(self.names[subscribers[0]])
            self.counts.append(1)
            self.rows.append(first + selections[0].item())
        elif selections:
            self.whose.extend(map(self.names.__getitem__, subscribers))
            self.counts.extend(map(len, selections))
            rows = np.concatenate(selections, dtype=np.uint32, casting="unsafe")
            rows += np.uint32(first)
            self.rows.frombytes(rows.view(np.uint8).data)

    def together(self, pubend: int, ids: Ids) -> Deliveries:
        whose, counts, rows = (np.frombuffer(each, np.uint32) for each in (self.whose, self.counts, self.rows))
        return Deliveries(tuple(self.names), pubend, ids, whose, counts, rows)


class Noted:
    """Events since they were taken last. Ids are given as bytes, one after the other."""

    __slots__ = ("_messages", "_sent", "others")

    def __init__(self) -> None:
        self._messages: defaultdict[tuple[Any, ...], list[bytes]] = defaultdict(list)  # (kind, pubend, perhaps a neighbour)
        self._sent: defaultdict[int, _Sent] = defaultdict(_Sent)
        self.others: list[TrackEvent] = []

    def published(self, pubend: int, ids: bytes) -> None:
        self._messages[Published, pubend].append(ids)

    def routed(self, pubend: int, upstream: int, ids: bytes) -> None:
        self._messages[Routed, pubend, upstream].append(ids)

    def forwarded(self, pubend: int, neighbour: int, ids: bytes) -> None:
        self._messages[Forwarded, pubend, neighbour].append(ids)

    def delivered(self, pubend: int, ids: bytes, subscribers: Sequence[str], selections: Sequence[Rows]) -> None:
        self._sent[pubend].add(ids, subscribers, selections)

    def take(self) -> tuple[TrackEvent, ...]:
        """Return few events. What explains messages, spans above all, comes after the messages.

        Events of the same batches share their ids.
        """
        known: dict[tuple[int, int], tuple[list[bytes], Ids]] = {}

        def join(parts: list[bytes]) -> Ids:
            name = (len(parts), id(parts[0]))
            before = known.get(name)
            if before is None or before[0] != parts:
                before = known[name] = (parts, ids_of(b"".join(parts)))
            return before[1]

        taken: list[TrackEvent] = [kind(*which, join(parts)) for (kind, *which), parts in self._messages.items()]
        taken += [sent.together(pubend, join(sent.ids)) for pubend, sent in self._sent.items() if sent.names]
        taken += self.others
        self._messages.clear()
        self._sent.clear()
        self.others.clear()
        return tuple(taken)
