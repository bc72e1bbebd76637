"""One server's copy of one topic: its log, its subscribers, its publishers.

Theory of operation (seed sections 2 and 4; ADR 0006). A message joins the log with a sequence number. A subscriber has a
*position*: what follows it in the log is unread; and a *late* list, in delivery order: unread messages at or before the
position, filled only by a merge. The next message is the head of the late list, else the first after the position; it stays
the next until a `get` names it as received.

Invariants: `refs` of an entry is the number of live subscribers for whom it is unread; an entry with `refs == 0` is in
`read`; `order` holds the log's sequence numbers ascending; a publisher's counter only grows; no counter at or below it is
taken again. Every change returns the rows that make it durable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from postroad.topics.machines.messages import NO_MESSAGE_ID, message_id, parse_message_id
from postroad.topics.machines.rows import (
    AddMessage,
    DropLate,
    DropMessages,
    DropPublisher,
    DropSubscriber,
    SavePublisher,
    SaveSubscriber,
    SaveTopic,
    ServerRow,
    SetLate,
    StoredMessage,
)

EVERYTHING: Final = 1 << 80  # a horizon above every stamp


class Verdict(Enum):
    DONE = "done"
    DUPLICATE = "duplicate"
    STALE = "stale"
    OTHER_BODY = "other body"
    NOT_SUBSCRIBED = "not subscribed"


@dataclass(slots=True)
class Entry:
    """`publisher` is empty for a message whose id another kind of server made."""

    id: bytes
    publisher: bytes
    counter: int
    stamp: int
    size: int
    refs: int = 0


def make_entry(message: bytes, stamp: int, size: int) -> Entry:
    publisher, counter = parse_message_id(message) or (b"", 0)
    return Entry(message, publisher, counter, stamp, size)


@dataclass(slots=True)
class Subscriber:
    """`reads` counts what this copy knows to be received since the subscription."""

    subscribed: bool
    operation: int
    stamp: int
    position: int
    reads: int = 0
    late: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Publisher:
    counter: int
    digest: int
    stamp: int


class TopicCopy:
    def __init__(self, topic: bytes, copy: bytes, lineage: tuple[bytes, ...] = ()) -> None:
        self.topic = topic
        self.copy = copy
        self.lineage: dict[bytes, None] = dict.fromkeys(lineage)
        self.log: dict[int, Entry] = {}
        self.order: list[int] = []
        self.ids: dict[bytes, int] = {}
        self.read: dict[int, None] = {}
        self.subscribers: dict[bytes, Subscriber] = {}
        self.publishers: dict[bytes, Publisher] = {}
        self.next_sequence = 1
        self.live = 0
        self.bytes = 0
        self.horizon = 0
        self.frozen = False
        self.target = b""
        self.target_address = b""

    # -- rows ---------------------------------------------------------------------------------------------------------

    def topic_row(self) -> SaveTopic:
        return SaveTopic(self.topic, self.copy, tuple(self.lineage), self.target, self.target_address)

    def subscriber_row(self, client: bytes) -> SaveSubscriber:
        s = self.subscribers[client]
        return SaveSubscriber(self.topic, client, s.subscribed, s.operation, s.stamp, s.position, s.reads)

    def publisher_row(self, name: bytes) -> SavePublisher:
        p = self.publishers[name]
        return SavePublisher(self.topic, name, p.counter, p.digest, p.stamp)

    # -- loading ------------------------------------------------------------------------------------------------------

    def load_message(self, row: StoredMessage) -> None:
        self.insert(row.sequence, make_entry(row.id, row.stamp, row.size))

    def put_back(self, row: SavePublisher) -> None:
        self.publishers[row.publisher] = Publisher(row.counter, row.digest, row.stamp)

    def load_subscriber(self, row: SaveSubscriber) -> None:
        self.subscribers[row.client] = Subscriber(row.subscribed, row.operation, row.stamp, row.position, row.reads)
        self.next_sequence = max(self.next_sequence, row.position + 1)

    def insert(self, sequence: int, entry: Entry) -> None:
        insort(self.order, sequence)
        self.log[sequence] = entry
        self.ids[entry.id] = sequence
        self.bytes += entry.size
        self.next_sequence = max(self.next_sequence, sequence + 1)

    def count(self) -> None:
        """Compute `live`, `refs` and `read` afresh: after loading, after a merge."""
        self.live = 0
        starts = [0] * (len(self.order) + 1)  # live subscribers whose position ends just before this place in the log
        for entry in self.log.values():
            entry.refs = 0
        for subscriber in self.subscribers.values():
            if subscriber.subscribed:
                self.live += 1
                starts[bisect_right(self.order, subscriber.position)] += 1
                for sequence in subscriber.late:
                    self.log[sequence].refs += 1
        running = 0
        self.read = {}
        for place, sequence in enumerate(self.order):
            running += starts[place]
            entry = self.log[sequence]
            entry.refs += running
            if not entry.refs:
                self.read[sequence] = None

    # -- the four operations ------------------------------------------------------------------------------------------

    def _fresher(self, client: bytes, operation: int | None) -> tuple[Subscriber | None, int]:
        """Return the record and the operation number; an old client, who sends none, is always newer."""
        known = self.subscribers.get(client)
        if operation is None:
            operation = known.operation + 1 if known else 1
        return known, operation

    def subscribe(self, client: bytes, operation: int | None, stamp: int) -> tuple[Verdict, list[ServerRow]]:
        known, operation = self._fresher(client, operation)
        if known and (operation < known.operation or (operation == known.operation and not known.subscribed)):
            return Verdict.STALE, []
        if known and known.subscribed:
            if operation == known.operation:
                return Verdict.DUPLICATE, []
            known.operation = operation
        else:
            self.subscribers[client] = Subscriber(True, operation, stamp, self.next_sequence - 1)
            self.live += 1
        return Verdict.DONE, [self.subscriber_row(client)]

    def unsubscribe(self, client: bytes, operation: int | None, stamp: int) -> tuple[Verdict, list[ServerRow]]:
        known, operation = self._fresher(client, operation)
        if known and (operation < known.operation or (operation == known.operation and known.subscribed)):
            return Verdict.STALE, []
        if known and operation == known.operation:
            return Verdict.DUPLICATE, []
        rows: list[ServerRow] = []
        if known and known.subscribed:
            self.live -= 1
            for sequence in self.unread(known):
                rows += self._release(sequence)
            if known.late:
                rows.append(SetLate(self.topic, client, ()))
        self.subscribers[client] = Subscriber(False, operation, stamp, self.next_sequence - 1)
        return Verdict.DONE, [*rows, self.subscriber_row(client)]

    def put(
        self, publisher: bytes, counter: int, digest: int, stamp: int, body: bytes, *, keep: bool
    ) -> tuple[Verdict, list[ServerRow]]:
        """`keep` stores the message although nobody here is subscribed: another copy's subscribers may need it."""
        known = self.publishers.get(publisher)
        if known and counter <= known.counter:
            if counter < known.counter:
                return Verdict.STALE, []
            return (Verdict.DUPLICATE if digest == known.digest else Verdict.OTHER_BODY), []
        self.publishers[publisher] = Publisher(counter, digest, stamp)
        rows: list[ServerRow] = [self.publisher_row(publisher)]
        if self.live or keep:
            entry = Entry(message_id(publisher, counter), publisher, counter, stamp, len(body), self.live)
            sequence = self.next_sequence
            self.insert(sequence, entry)
            if not self.live:
                self.read[sequence] = None
            rows.append(AddMessage(self.topic, sequence, entry.id, stamp, body))
        return Verdict.DONE, rows

    def get(self, client: bytes, last: bytes) -> tuple[Verdict, list[ServerRow], int | None]:
        """Take note that `last` was received; give the sequence number of the next message, or None."""
        subscriber = self.subscribers.get(client)
        if subscriber is None or not subscriber.subscribed:
            return Verdict.NOT_SUBSCRIBED, [], None
        rows = [] if last == NO_MESSAGE_ID else self._list_received(client, subscriber, last)
        return Verdict.DONE, rows, self.head(subscriber)

    def _list_received(self, client: bytes, subscriber: Subscriber, last: bytes) -> list[ServerRow]:
        sequence = self.ids.get(last)
        if sequence is None:
            return []
        rows: list[ServerRow] = []
        if sequence in subscriber.late:
            subscriber.late.remove(sequence)
            rows.append(DropLate(self.topic, client, sequence))
        elif not subscriber.late and sequence == self.head(subscriber):
            subscriber.position = sequence
        else:
            return []
        subscriber.reads += 1
        return [*rows, self.subscriber_row(client), *self._release(sequence)]

    def head(self, subscriber: Subscriber) -> int | None:
        if subscriber.late:
            return subscriber.late[0]
        place = bisect_right(self.order, subscriber.position)
        return self.order[place] if place < len(self.order) else None

    def unread(self, subscriber: Subscriber) -> list[int]:
        return [*subscriber.late, *self.order[bisect_right(self.order, subscriber.position) :]]

    # -- reclaiming ---------------------------------------------------------------------------------------------------

    def _release(self, sequence: int) -> list[ServerRow]:
        entry = self.log[sequence]
        entry.refs -= 1
        if entry.refs:
            return []
        if entry.stamp <= self.horizon:
            return [self._drop([sequence])]
        self.read[sequence] = None
        return []

    def _drop(self, sequences: list[int]) -> ServerRow:
        for sequence in sequences:
            entry = self.log.pop(sequence)
            self.bytes -= entry.size
            del self.ids[entry.id]
            self.read.pop(sequence, None)
        if len(sequences) == 1:
            del self.order[bisect_left(self.order, sequences[0])]
        else:  # one pass, however many: a settled backlog may be a million
            self.order = [sequence for sequence in self.order if sequence in self.log]
        return DropMessages(self.topic, tuple(sequences))

    def settle(self, horizon: int, *, retained_after: int = 0, tombstones_before: int = EVERYTHING) -> list[ServerRow]:
        """No other copy holds a subscription stamped at or below `horizon`: reclaim what that allows."""
        self.horizon = max(self.horizon, horizon)
        limit = max(self.horizon, retained_after)
        done = [sequence for sequence in self.read if self.log[sequence].stamp <= limit]
        rows: list[ServerRow] = [self._drop(done)] if done else []
        oldest = min(self.horizon, tombstones_before)
        for client in [c for c, s in self.subscribers.items() if not s.subscribed and s.stamp <= oldest]:
            del self.subscribers[client]
            rows.append(DropSubscriber(self.topic, client))
        return rows

    def evict_publisher(self) -> ServerRow:
        """Forget the publisher that was idle longest."""
        name = min(self.publishers, key=lambda p: self.publishers[p].stamp)
        del self.publishers[name]
        return DropPublisher(self.topic, name)
