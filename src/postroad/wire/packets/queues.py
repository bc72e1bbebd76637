"""Queues beyond the Telesto report: leases, batches, settings, figures, bindings (0x0041-0x0066).

The report's ReadMessage hands a message over and forgets it. TakeMessages leases it: it comes again unless DoneMessages
names it in time. A lease is named by (queue, message, delivery); the client is the connection's.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from postroad.wire.packets.telesto import BROKER, CLIENT, ClientId, Payload, Priority, QueueId, QueueMessage, ReadMode
from postroad.wire.registry import U32, U63, Packet, request, response

BATCH_MAX: Final = 1000
"""Messages or leases in one packet."""

Key: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=64)]
BINDINGS_MAX: Final = 10_000
FilterText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=65_536)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class LeaseStatus(enum.IntEnum):
    """What became of a lease a client named."""

    HELD = 1  # it was this client's, and the change was made
    ABSENT = 2  # the message no longer exists: it was done before
    LOST = 3  # the message waits again or is with somebody else


class NewMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message to put. With a key, a repeated put is one message. `attributes` are a msgpack map, as in `QueueMessage`."""

    queue_id: QueueId
    message: Payload
    receiver_id: ClientId | None = None
    context: U63 | None = None
    priority: Priority = 5
    delay_ms: Milliseconds = 0
    ttl_ms: Milliseconds | None = None
    key: Key | None = None
    attributes: Payload | None = None


class PutResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The id of a message put; none when its queue does not exist."""

    message_id: U63 | None
    duplicate: bool


class LeaseRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names a lease."""

    queue_id: QueueId
    message_id: U63
    delivery: U32


class BoundFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue bound to a filter."""

    binding_id: U63
    queue_id: QueueId
    filter_text: FilterText
    priority: Priority


Leases: TypeAlias = Annotated[tuple[LeaseRef, ...], Meta(min_length=1, max_length=BATCH_MAX)]
Statuses: TypeAlias = Annotated[tuple[LeaseStatus, ...], Meta(max_length=BATCH_MAX)]


@request(0x41, CLIENT)
class PutMessages(Packet, frozen=True):
    """Put many messages at once, each into one queue; all are kept or none."""

    messages: Annotated[tuple[NewMessage, ...], Meta(min_length=1, max_length=BATCH_MAX)]


@response(0x42, BROKER)
class PutMessagesResponse(Packet, frozen=True):
    """One result per message, in order."""

    results: Annotated[tuple[PutResult, ...], Meta(max_length=BATCH_MAX)]


@request(0x43, CLIENT)
class TakeMessages(Packet, frozen=True):
    """Lease messages for this client: they come again unless they are done in time."""

    queue_id: QueueId
    mode: ReadMode = ReadMode.PRIORITY
    sender_id: ClientId | None = None
    context: U63 | None = None
    limit: Annotated[int, Meta(ge=1, le=BATCH_MAX)] = 1
    lease_ms: Milliseconds | None = None
    wait_ms: Milliseconds = 0


@response(0x44, BROKER)
class TakeMessagesResponse(Packet, frozen=True):
    """The messages, in reading order; none when there were none in time."""

    messages: Annotated[tuple[QueueMessage, ...], Meta(max_length=BATCH_MAX)]


@request(0x45, CLIENT)
class DoneMessages(Packet, frozen=True):
    """Say that leased messages are done; they are deleted."""

    leases: Leases


@response(0x46, BROKER)
class DoneMessagesResponse(Packet, frozen=True):
    """What became of each lease, in order."""

    statuses: Statuses


@request(0x47, CLIENT)
class ReleaseMessages(Packet, frozen=True):
    """Give leased messages back, visible again at once or after a delay."""

    leases: Leases
    delay_ms: Milliseconds = 0


@response(0x48, BROKER)
class ReleaseMessagesResponse(Packet, frozen=True):
    """What became of each lease, in order."""

    statuses: Statuses


@request(0x49, CLIENT)
class ExtendLeases(Packet, frozen=True):
    """Keep leased messages longer; the new end counts from now."""

    leases: Leases
    lease_ms: Milliseconds


@response(0x4A, BROKER)
class ExtendLeasesResponse(Packet, frozen=True):
    """What became of each lease, in order."""

    statuses: Statuses


@request(0x51, CLIENT)
class ConfigureQueue(Packet, frozen=True):
    """Set a queue's lease, how often it delivers a message, and where messages go that were delivered so often."""

    queue_id: QueueId
    lease_ms: Milliseconds
    max_deliveries: U32
    dead_letter_id: QueueId | None


@request(0x53, CLIENT)
class GetQueueSettings(Packet, frozen=True):
    """Ask for a queue's settings."""

    queue_id: QueueId


@response(0x54, BROKER)
class GetQueueSettingsResponse(Packet, frozen=True):
    """A queue's settings."""

    lease_ms: Milliseconds
    max_deliveries: U32
    dead_letter_id: QueueId | None


@request(0x55, CLIENT)
class GetQueueStats(Packet, frozen=True):
    """Ask how many messages a queue holds, how old the oldest is and how fast it moves."""

    queue_id: QueueId


@response(0x56, BROKER)
class GetQueueStatsResponse(Packet, frozen=True):
    """Depth by state, the age of the oldest waiting message, and this broker's counts and rates."""

    waiting: U63
    scheduled: U63
    leased: U63
    oldest_age_ms: U63 | None
    put_total: U63
    taken_total: U63
    done_total: U63
    put_per_s: float
    taken_per_s: float
    done_per_s: float


@request(0x61, CLIENT)
class BindQueue(Packet, frozen=True):
    """Feed a queue with the overlay's messages that match a filter, each exactly once."""

    queue_id: QueueId
    filter_text: FilterText
    priority: Priority = 5


@response(0x62, BROKER)
class BindQueueResponse(Packet, frozen=True):
    """The binding's id."""

    binding_id: U63


@request(0x63, CLIENT)
class UnbindQueue(Packet, frozen=True):
    """End a binding. Messages in the queue stay."""

    binding_id: U63


@request(0x65, CLIENT)
class GetBindings(Packet, frozen=True):
    """List all bindings."""


@response(0x66, BROKER)
class GetBindingsResponse(Packet, frozen=True):
    """All bindings."""

    bindings: Annotated[tuple[BoundFilter, ...], Meta(max_length=BINDINGS_MAX)]
