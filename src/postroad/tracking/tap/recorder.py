"""What is recorded of a broker for its tracker: events, and the attachments that spans are made of.

Of messages the ids are copied, and become few events when they are taken. An *attachment* is one
subscription in one pubend's stream, from the moment its client was told where it starts. At its end, and from time to time while
it lasts, its span says how far everything that matches was sent. Spans are noted after the deliveries they speak of, and reach
the tracker after them, so they never claim more than the histories hold.

Bounded: a flush notes at most `SPANS_MAX` spans of those that last, in rotation; the others' last spans stay true, only older.
Where nothing is published, spans and horizons are noted only every `QUIET_MS`, so that a broker at rest hardly writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.message import ids_of
from postroad.core.batch.selection import Rows
from postroad.tracking.histories.elements import Horizon, Links, Lost, Masks, Span
from postroad.tracking.histories.events import Routed, TrackEvent
from postroad.tracking.tap.event_buffer import EventBuffer, IdPieces
from postroad.types import MESSAGE_ID_BYTES

SPANS_MAX: Final = 4096
QUIET_MS: Final = 60_000
EVENT_BYTES: Final = 256  # what an event costs beside its ids
ENTRY_BYTES: Final = 8  # a row of a delivery
SELECTION_BYTES: Final = 16  # and a selection of rows beside its numbers
NEIGHBOURS_MAX: Final = 64  # of a routing set


def name_subscriber(name: str | None, broker: int, incarnation: int, number: int, client: str = "") -> str:
    """Return what tracks call a subscriber: a durable one by its name, another by a name it has only once, with its client's.

    What begins with `~` and a digit is never durable: a durable name that begins with `~` gets another one.
    """
    if name is not None:
        return f"~{name}" if name.startswith("~") else name
    return f"~{broker}.{incarnation}.{number}" + (f"@{client}" if client else "")


@dataclass(slots=True)
class Attachment:
    """A subscription in a pubend's stream. `noted` is the `to_tick` of its last span, of the time `noted_ms`."""

    number: int
    subscriber: str
    pubend: int
    filter: str
    from_tick: int
    attached_ms: int
    reached: Callable[[], int]
    noted: int
    noted_ms: int


class Recorder:
    """What was recorded since it was taken last, and who is attached."""

    def __init__(self, *, per_neighbour: bool = False, routing_sets: bool = False) -> None:
        self.wall_ms = 0
        self.per_neighbour: Final = per_neighbour
        self.routing_sets: Final = routing_sets
        self._events: Final = EventBuffer()
        self._entries = 0  # ids that they add to histories
        self.size = 0  # of the ids and the rows, in bytes
        self._last: tuple[Batch | None, IdPieces] = (None, ())  # the batch that was noted last, and its ids
        self._busy: dict[int, None] = {}  # pubends of messages since the last flush
        self._horizons_ms = 0  # when horizons were noted last
        self._attachments: dict[int, Attachment] = {}  # the next to be noted stands first
        self.forgotten = False  # the next flush has to say everything again
        self.membership_changed = False  # somebody came: the attachment map on disk is behind
        self._number = 0
        self._neighbours: dict[int, int] = {}  # broker -> bit of routing sets

    @property
    def any(self) -> bool:
        return self.size > 0 or bool(self._events.others)

    def take(self) -> tuple[tuple[TrackEvent, ...], int, int]:
        """Return what was noted, how many entries that is, and the bytes it takes."""
        taken = self._events.take()
        entries, size = self._entries, self.size + EVENT_BYTES * len(taken)
        self._entries = self.size = 0
        self._last = (None, ())
        return taken, entries, size

    # --- messages ---

    def published(self, pubend: int, batch: Batch) -> None:
        ids = self._ids_of(batch)
        self._events.published(pubend, ids)
        self._busy[pubend] = None
        self._entries += len(batch)

    def routed(self, pubend: int, upstream: int, batch: Batch, sent: Mapping[int, Rows]) -> None:
        """Note what came from a neighbour; `sent` tells which rows went on to which others."""
        ids = self._ids_of(batch)
        self._busy[pubend] = None
        self._entries += len(batch)
        masks = self._masks(len(batch), sent) if self.routing_sets else None
        if masks is None:
            self._events.routed(pubend, upstream, ids)
        else:  # it is not joined with others
            self._events.others.append(Routed(pubend, upstream, ids_of(b"".join(ids)), masks, tuple(self._neighbours)))

    def forwarded(self, pubend: int, neighbour: int, batch: Batch) -> None:
        self._events.forwarded(pubend, neighbour, self._ids_of(batch))
        self._entries += len(batch)

    def delivered(self, subscribers: Sequence[str], pubend: int, batch: Batch, selections: Sequence[Rows]) -> None:
        """Note that each of these subscribers was sent its selection of a batch."""
        self._events.delivered(pubend, self._ids_of(batch), len(batch), subscribers, selections)
        self._busy[pubend] = None
        entries = sum(map(len, selections))
        self._entries += entries
        self.size += ENTRY_BYTES * entries + SELECTION_BYTES * len(selections)

    # --- subscriptions ---

    def attached(self, subscriber: str, pubend: int, filter_text: str, from_tick: int, reached: Callable[[], int]) -> int:
        """Begin an attachment and return its number; `reached` tells how far everything was sent."""
        self._number += 1
        wall_ms = self.wall_ms
        begun = Attachment(self._number, subscriber, pubend, filter_text, from_tick, wall_ms, reached, from_tick, wall_ms)
        self._attachments[self._number] = begun
        self.membership_changed = True
        self._note(begun, from_tick)
        return self._number

    def note_spans(self, subscriber: str) -> None:
        """Note how far the attachments of a subscriber are: somebody is about to ask."""
        for attachment in self._attachments.values():
            if attachment.subscriber == subscriber and attachment.reached() > attachment.noted:
                self._note(attachment, attachment.reached())

    def detached(self, number: int, reached: int) -> None:
        """End an attachment that was sent everything up to `reached`."""
        attachment = self._attachments.pop(number, None)
        if attachment is not None:
            self._note(attachment, reached, detached_ms=max(self.wall_ms, 1))

    def lost(self, subscriber: str, pubend: int, lo: int, hi: int) -> None:
        self._events.others.append(Lost(subscriber, pubend, lo, hi, self.wall_ms))

    # --- the broker ---

    def links(self, neighbours: Iterable[int]) -> None:
        present = tuple(sorted(set(neighbours)))
        self._number_neighbours(present)
        self._events.others.append(Links(self.wall_ms, present))

    def flush(self, horizons: Mapping[int, int]) -> None:
        """Note how far attachments and publisher histories are: what a tracker adds to what it makes durable."""
        if self.forgotten:
            self._forget()
        for number in list(islice(self._attachments, SPANS_MAX)):
            attachment = self._attachments.pop(number)
            self._attachments[number] = attachment
            if attachment.pubend in self._busy or self._is_quiet_since(attachment.noted_ms):
                reached = attachment.reached()
                if reached > attachment.noted:
                    self._note(attachment, reached)
        if not horizons.keys().isdisjoint(self._busy) or self._is_quiet_since(self._horizons_ms):
            self._horizons_ms = self.wall_ms
            self._events.others.extend(Horizon(pubend, tick) for pubend, tick in horizons.items())
        self._busy.clear()

    def farewell(self, horizons: Mapping[int, int]) -> None:
        """Note the end of everything."""
        for number, attachment in list(self._attachments.items()):
            self.detached(number, attachment.reached())
        self.flush(horizons)

    # --- inside ---

    def _ids_of(self, batch: Batch) -> IdPieces:
        """Return a batch's ids, which are taken and counted once for all notes of one batch: they follow each other."""
        last, ids = self._last
        if last is not batch:
            ids = batch.id_pieces()
            self._last = (batch, ids)
            self.size += MESSAGE_ID_BYTES * len(batch)
        return ids

    def _forget(self) -> None:
        """Let what was noted of spans and horizons be noted again."""
        self.forgotten = False
        self._horizons_ms = self.wall_ms - QUIET_MS
        for attachment in self._attachments.values():
            attachment.noted, attachment.noted_ms = attachment.from_tick - 1, self.wall_ms - QUIET_MS

    def _is_quiet_since(self, noted_ms: int) -> bool:
        return not 0 <= self.wall_ms - noted_ms < QUIET_MS

    def _note(self, attachment: Attachment, to_tick: int, detached_ms: int = 0) -> None:
        a = attachment
        a.noted, a.noted_ms = max(a.noted, to_tick), self.wall_ms
        self._events.others.append(
            Span(a.subscriber, a.number, a.pubend, a.filter, a.from_tick, a.noted, a.attached_ms, detached_ms)
        )

    def _number_neighbours(self, neighbours: Iterable[int]) -> None:
        for neighbour in neighbours:
            self._neighbours.setdefault(neighbour, len(self._neighbours))

    def _masks(self, count: int, sent: Mapping[int, Rows]) -> Masks | None:
        """Return for each row the set of neighbours it was sent to; None when there are more than a set can name."""
        self._number_neighbours(sent)
        if len(self._neighbours) > NEIGHBOURS_MAX:
            return None
        masks = np.zeros(count, np.uint64)
        for neighbour, rows in sent.items():
            masks[rows] |= np.uint64(1 << self._neighbours[neighbour])
        return masks
