"""A copy on its way to another server: the parts it travels in, and where the move stands.

Before the commit either side may fail and nothing has happened; the copy serves again. From the commit on (durable, before
the final TRANSFER leaves) the copy never serves again: the move goes on, over crashes, until the target says that it has
the copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from postroad.topics.machines.merge import Arrival
from postroad.topics.machines.orders import MessageRef, Parcel
from postroad.topics.machines.replica import TopicCopy
from postroad.topics.machines.transfer import (
    PublisherLine,
    SubscriberLine,
    copy_line,
    lineage_line,
    publisher_line,
    subscriber_line,
)

IDS_PER_LINE: Final = 1000
MESSAGE_OVERHEAD: Final = 64


@dataclass(slots=True)
class Move:
    """`attempt` names one series of parts; `retry_at` is set while nothing is under way."""

    topic: bytes
    target: bytes
    address: bytes
    attempt: int
    parts: list[Parcel]
    part: int = 0
    committed: bool = False
    retry_at: float | None = None

    @property
    def final(self) -> bool:
        return self.part == len(self.parts)


@dataclass(slots=True)
class Staging:
    """Parts of an arriving copy, not yet merged."""

    attempt: int
    arrival: Arrival
    parts: int = 0
    touched: float = field(default=0.0)


def plan_parts(copy: TopicCopy, part_bytes: int) -> list[Parcel]:
    """Cut the copy into parts of about `part_bytes`; one message is never cut."""
    parts: list[Parcel] = []
    lines: list[bytes] = []
    messages: list[MessageRef] = []
    size = 0

    def close() -> None:
        nonlocal lines, messages, size
        parts.append(Parcel(copy.topic, b"".join(lines), tuple(messages), size))
        lines, messages, size = [], [], 0

    for line in _lines(copy):
        lines.append(line)
        size += len(line)
        if size >= part_bytes:
            close()
    for sequence in copy.order:
        entry = copy.log[sequence]
        cost = entry.size + len(entry.id) + MESSAGE_OVERHEAD
        if messages and size + cost > part_bytes:
            close()
        messages.append(MessageRef(entry.id, entry.stamp, sequence))
        size += cost
    if lines or messages:
        close()
    return parts


def _lines(copy: TopicCopy) -> list[bytes]:
    lines = [copy_line(copy.copy)]
    lineage = list(copy.lineage)
    lines += [lineage_line(lineage[i : i + IDS_PER_LINE]) for i in range(0, len(lineage), IDS_PER_LINE)]
    lines += [publisher_line(PublisherLine(name, p.counter, p.digest, p.stamp)) for name, p in copy.publishers.items()]
    for client, subscriber in copy.subscribers.items():
        ids = [copy.log[sequence].id for sequence in copy.unread(subscriber)] if subscriber.subscribed else []
        for start in range(0, max(1, len(ids)), IDS_PER_LINE):
            unread = tuple(ids[start : start + IDS_PER_LINE])
            line = SubscriberLine(
                client, unread, subscriber.stamp, subscriber.operation, subscriber.reads, subscribed=subscriber.subscribed
            )
            lines.append(subscriber_line(line))
    return lines
