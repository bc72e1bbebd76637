"""Merging another server's copy of a topic into ours, so that nobody loses or doubles a message.

Theory of operation (ADR 0006). A is our copy, B the one that arrives. For each publisher, "known" means a counter at or
below the copy's counter: by the home rule, an acknowledged message is known to every copy that took a later one of its
publisher, so what is known and absent was either read by all who wanted it there or never acknowledged. A pair (subscriber,
message) that one copy knows was decided there, and that decision stays. A pair that neither copy knows whole (subscriber
here, message there) is decided by stamps: due when the message's is greater.

The seed has no stamps and drops those pairs; `stamps=False` does the same, for the simulator to show the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from postroad.topics.machines.messages import parse_message_id
from postroad.topics.machines.replica import Entry, Publisher, Subscriber, TopicCopy, make_entry
from postroad.topics.machines.rows import SaveSubscriber, ServerRow, SetLate, TakeStaged, Unstage
from postroad.topics.machines.transfer import PublisherLine, SubscriberLine, TransferData


@dataclass(frozen=True, slots=True)
class StagedMessage:
    id: bytes
    stamp: int
    size: int


@dataclass(slots=True)
class Arrival:
    """The whole of B, without the bodies, which are staged in the store."""

    copy: bytes
    lineage: list[bytes] = field(default_factory=list)
    publishers: dict[bytes, PublisherLine] = field(default_factory=dict)
    subscribers: dict[bytes, SubscriberLine] = field(default_factory=dict)
    messages: dict[bytes, StagedMessage] = field(default_factory=dict)
    unread: dict[bytes, list[bytes]] = field(default_factory=dict)

    def add(self, part: TransferData) -> None:
        self.lineage += part.lineage
        for publisher in part.publishers:
            self.publishers[publisher.publisher] = publisher
        for line in part.subscribers:
            self.subscribers.setdefault(line.client, line)
            self.unread.setdefault(line.client, []).extend(line.unread)
        for message in part.messages:
            self.messages[message.id] = StagedMessage(message.id, message.stamp or 0, len(message.body))

    def greatest_stamp(self) -> int:
        stamps = [m.stamp for m in self.messages.values()]
        stamps += [s.stamp or 0 for s in self.subscribers.values()]
        stamps += [p.stamp for p in self.publishers.values()]
        return max(stamps, default=0)


def merge(ours: TopicCopy, theirs: Arrival, *, stamps: bool, lineage_max: int = 10_000) -> list[ServerRow]:
    """Take B into A. The rows make it durable in one transaction. Beyond `lineage_max`, the oldest ancestors are forgotten."""
    lineage = dict.fromkeys([*ours.lineage, *theirs.lineage, theirs.copy])
    ours.lineage = dict.fromkeys(list(lineage)[-lineage_max:])
    return _Merge(ours, theirs, stamps=stamps).run()


class _Merge:
    def __init__(self, ours: TopicCopy, theirs: Arrival, *, stamps: bool) -> None:
        self.ours = ours
        self.theirs = theirs
        self.stamps = stamps
        self.rows: list[ServerRow] = []
        self.old_log = dict(ours.log)
        self.known_here = {name: publisher.counter for name, publisher in ours.publishers.items()}
        self.fresh: list[int] = []  # B's messages that are new to A

    def run(self) -> list[ServerRow]:
        unread_here = {client: self.ours.unread(s) for client, s in self.ours.subscribers.items() if s.subscribed}
        self._insert()
        unread_there = {client: self._sequences(ids) for client, ids in self.theirs.unread.items()}
        new_there = [sequence for sequence, entry in self.old_log.items() if not self._is_known_there(entry)]
        for client in list(dict.fromkeys([*self.ours.subscribers, *self.theirs.subscribers])):
            self._join(client, unread_here.get(client, []), unread_there.get(client, []), new_there)
        self._publishers()
        self.ours.count()
        return [self.ours.topic_row(), *self.rows, Unstage(self.ours.topic, self.theirs.copy)]

    def _is_known_here(self, message: bytes) -> bool:
        parsed = parse_message_id(message)
        if parsed is None:
            return message in self.ours.ids
        return parsed[1] <= self.known_here.get(parsed[0], -1)

    def _is_known_there(self, entry: Entry) -> bool:
        line = self.theirs.publishers.get(entry.publisher)
        return entry.id in self.theirs.messages or (line is not None and entry.counter <= line.counter)

    def _insert(self) -> None:
        """Put B's messages into the log: those new to A, and those one of B's subscribers has yet to read."""
        wanted = {message for ids in self.theirs.unread.values() for message in ids}
        for message in sorted(self.theirs.messages.values(), key=lambda m: (m.stamp, m.id)):
            new = not self._is_known_here(message.id)
            if message.id in self.ours.ids or not (new or message.id in wanted):
                continue
            sequence = self.ours.next_sequence
            self.ours.insert(sequence, make_entry(message.id, message.stamp, message.size))
            self.rows.append(TakeStaged(self.ours.topic, self.theirs.copy, message.id, sequence, message.stamp))
            if new:
                self.fresh.append(sequence)

    def _sequences(self, ids: list[bytes]) -> list[int]:
        return [self.ours.ids[message] for message in ids if message in self.ours.ids]

    def _join(self, client: bytes, unread_here: list[int], unread_there: list[int], new_there: list[int]) -> None:
        here, there = self.ours.subscribers.get(client), self.theirs.subscribers.get(client)
        if here is not None and there is not None:
            here, there = _winner(here, there)
        if here is None:
            assert there is not None
            if not there.subscribed:
                self._save(client, Subscriber(False, there.operation, there.stamp or 0, 0), [])
                return
            unread = unread_there + self._after(new_there, there.stamp)
            self._save(client, Subscriber(True, there.operation, there.stamp or 0, 0, there.reads), unread)
        elif there is None:
            if here.subscribed:
                self._save(client, here, unread_here + self._after(self.fresh, here.stamp))
        elif here.subscribed:
            here.stamp = min(here.stamp, there.stamp if there.stamp is not None else here.stamp)
            unread = self._both(here, there, unread_here, unread_there, new_there)
            here.reads += there.reads
            self._save(client, here, unread)

    def _both(
        self, here: Subscriber, there: SubscriberLine, unread_here: list[int], unread_there: list[int], new_there: list[int]
    ) -> list[int]:
        """One subscription that reached both copies: the side it was read from decides what both know."""
        from_b, from_a = self._after(self.fresh, here.stamp), self._after(new_there, here.stamp)
        if here.reads and there.reads:  # only a client without a home can do this; repeat nothing it may have read
            new, there_too, a_only = set(self.fresh), set(unread_there), set(new_there)
            return [s for s in unread_here if s in there_too or s in a_only] + [s for s in unread_there if s in new] + from_b
        if here.reads:
            return unread_here + from_b
        if there.reads:
            return unread_there + from_a
        return unread_here + unread_there + from_b + from_a

    def _after(self, sequences: list[int], stamp: int | None) -> list[int]:
        if stamp is None or not self.stamps:
            return []
        return [sequence for sequence in sequences if self.ours.log[sequence].stamp > stamp]

    def _save(self, client: bytes, subscriber: Subscriber, unread: list[int]) -> None:
        subscriber.late = self._sort(unread)
        subscriber.position = self.ours.next_sequence - 1
        self.ours.subscribers[client] = subscriber
        row = SaveSubscriber(
            self.ours.topic,
            client,
            subscriber.subscribed,
            subscriber.operation,
            subscriber.stamp,
            subscriber.position,
            subscriber.reads,
        )
        self.rows += [row, SetLate(self.ours.topic, client, tuple(subscriber.late))]

    def _sort(self, unread: list[int]) -> list[int]:
        """Order by stamp; the messages of one publisher, in the places they have, by counter."""
        log = self.ours.log
        merged = sorted(dict.fromkeys(unread), key=lambda s: (log[s].stamp, log[s].id))
        places: dict[bytes, list[int]] = {}
        for place, sequence in enumerate(merged):
            if log[sequence].publisher:
                places.setdefault(log[sequence].publisher, []).append(place)
        for own in places.values():
            for place, sequence in zip(own, sorted((merged[p] for p in own), key=lambda s: log[s].counter), strict=True):
                merged[place] = sequence
        return merged

    def _publishers(self) -> None:
        for name, line in self.theirs.publishers.items():
            known = self.ours.publishers.get(name)
            if known is None or line.counter > known.counter:
                self.ours.publishers[name] = Publisher(line.counter, line.digest, line.stamp)
                self.rows.append(self.ours.publisher_row(name))


def _winner(here: Subscriber, there: SubscriberLine) -> tuple[Subscriber | None, SubscriberLine | None]:
    """Return the side whose operation is newer, both when it is one operation; an old peer's line counts as the same."""
    if there.stamp is None or here.operation == there.operation:
        if here.subscribed and not there.subscribed:
            return None, there
        return (here, None) if there.subscribed and not here.subscribed else (here, there)
    return (here, None) if here.operation > there.operation else (None, there)
