"""Queues: the packets of the Telesto report, section 3.2, Table 3.6 (0x0001-0x00ff).

Where we differ, and why:

- ReadMessage, ReadMessageResponse and ReadResponse have 0x32-0x34 in the report, against its own rule that requests are odd
  and a response is its request + 1. Here the rule holds: 0x33, 0x34 and 0x35. PutMessage gets the response 0x32 that the
  report's procedures already return: the queues that did get the message. ReadResponse gets its own response, 0x36.
- Success (0x03) and Error (0x05) keep their ids: the two packets from a broker that are odd. Ping, Pong and Error, which every
  connection uses, are in `session`.
- GetQueueId has no `mode`: neither the report's procedure (Table 3.5) nor its client (Table 4.1) knows what it would mean.
- A message is bytes, 8 MiB at most, instead of 2000 characters.
- Lists come in pages: GetQueues, GetActiveQueues and GetMessages say after which id to go on, and their responses whether
  there is more. Reading a whole queue then works however large it is.
- Reads may wait (`wait_ms`), so that clients need not poll.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from postroad.types import AttributeValue
from postroad.wire.registry import U32, U63, Direction, Name, Packet, request, response

CLIENT: Final = Direction.CLIENT_TO_BROKER
BROKER: Final = Direction.BROKER_TO_CLIENT

ClientId: TypeAlias = U63
QueueId: TypeAlias = U63
Priority: TypeAlias = Annotated[int, Meta(ge=1, le=10)]
Payload: TypeAlias = Annotated[bytes, Meta(max_length=8 << 20)]
Key: TypeAlias = Annotated[bytes, Meta(max_length=255)]

QUEUE_IDS_MAX: Final = 1024
"""Queues one PutMessage may name."""
PAGE_MAX: Final = 10_000
"""Queues or messages in one response."""


class ClientMode(enum.IntEnum):
    """What a client may do with messages (Table 3.1)."""

    READ = 1
    READ_AND_PUT = 2


class ReadMode(enum.IntEnum):
    """Which message a read takes first (Table 3.4)."""

    PRIORITY = 1
    ARRIVAL = 2


CONTEXT_MAX: Final = (1 << 63) - 1
"""Contexts of requests, which their answers repeat, are positive 64-bit integers of the database."""


class MessageState(enum.IntEnum):
    """Where a message stands."""

    WAITING = 0
    SCHEDULED = 1
    LEASED = 2


class Queue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue (Table 3.2)."""

    queue_id: QueueId
    queue_name: Name


QueuePage: TypeAlias = Annotated[tuple[Queue, ...], Meta(max_length=PAGE_MAX)]


class QueueMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in a queue (Table 3.3). Broker and database set its id, sender and time; no receiver means anyone.

    The report does not have the fields below the message: `delivery` counts how often it was taken, `key` is the idempotency
    key it was put with, `packed_attributes` are those of a message the overlay fed in (msgpack), `origin_queue_id` is where a
    dead letter came from.
    """

    message_id: U63
    queue_id: QueueId
    sender_id: ClientId
    receiver_id: ClientId | None
    context: U63 | None
    priority: Priority
    time_of_arrival_ms: U63
    message: Payload
    state: MessageState = MessageState.WAITING
    delivery: U32 = 0
    key: Key | None = None
    packed_attributes: Payload | None = None
    origin_queue_id: QueueId | None = None

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of a message that the overlay fed in; none for a message that a client put."""
        return msgspec.msgpack.decode(self.packed_attributes, type=dict[str, Any]) if self.packed_attributes else {}


MessagePage: TypeAlias = Annotated[tuple[QueueMessage, ...], Meta(max_length=PAGE_MAX)]
AtMostOne: TypeAlias = Annotated[tuple[QueueMessage, ...], Meta(max_length=1)]


@response(0x03, Direction.BROKER_TO_CLIENT | Direction.BROKER_TO_BROKER, needs_identification=False)
class Success(Packet, frozen=True):
    """A request that returns nothing was carried out."""


@request(0x11, CLIENT, needs_identification=False)
class RegisterClient(Packet, frozen=True):
    """Register a new queue client under a unique name; the connection is then identified as it.

    With `existing`, a client of this name that exists already is the one; it keeps its mode. With the `key` that a client was
    registered with, the request may be repeated: it is the same client.
    """

    client_name: Name
    mode: ClientMode
    existing: bool = False
    key: Key | None = None


@response(0x12, BROKER, needs_identification=False)
class RegisterClientResponse(Packet, frozen=True):
    """The client's id."""

    client_id: ClientId


@request(0x13, CLIENT, needs_identification=False)
class IdentifyClient(Packet, frozen=True):
    """Identify the connection as a registered queue client."""

    client_id: ClientId


@response(0x14, BROKER, needs_identification=False)
class IdentifyClientResponse(Packet, frozen=True):
    """The client's mode and name."""

    mode: ClientMode
    client_name: Name


@request(0x15, CLIENT)
class DeleteClient(Packet, frozen=True):
    """Delete a queue client."""

    client_id: ClientId


@request(0x21, CLIENT)
class CreateQueue(Packet, frozen=True):
    """Create a queue under a unique name, with these settings; no queue is created when they are refused."""

    queue_name: Name
    lease_ms: U63 = 30_000
    max_deliveries: U32 = 0
    dead_letter_id: QueueId | None = None


@response(0x22, BROKER)
class CreateQueueResponse(Packet, frozen=True):
    """The new queue's id."""

    queue_id: QueueId


@request(0x23, CLIENT)
class DeleteQueue(Packet, frozen=True):
    """Delete a queue and the messages in it."""

    queue_id: QueueId


@request(0x25, CLIENT)
class GetQueueId(Packet, frozen=True):
    """Find a queue by its name."""

    queue_name: Name


@response(0x26, BROKER)
class GetQueueIdResponse(Packet, frozen=True):
    """The queue's id."""

    queue_id: QueueId


@request(0x27, CLIENT)
class GetQueueName(Packet, frozen=True):
    """Find a queue by its id."""

    queue_id: QueueId


@response(0x28, BROKER)
class GetQueueNameResponse(Packet, frozen=True):
    """The queue's name."""

    queue_name: Name


@request(0x29, CLIENT)
class GetQueues(Packet, frozen=True):
    """List all queues, in the order of their ids, after the one given."""

    after_queue_id: QueueId = 0


@response(0x2A, BROKER)
class GetQueuesResponse(Packet, frozen=True):
    """The next queues, and whether there are more."""

    queues: QueuePage
    more: bool = False


@request(0x2B, CLIENT)
class GetActiveQueues(Packet, frozen=True):
    """List the queues that hold messages for this client, after the one given."""

    after_queue_id: QueueId = 0


@response(0x2C, BROKER)
class GetActiveQueuesResponse(Packet, frozen=True):
    """The next such queues, and whether there are more."""

    queues: QueuePage
    more: bool = False


@request(0x2D, CLIENT)
class GetMessages(Packet, frozen=True):
    """Look at the messages in a queue, after the one given; they stay there."""

    queue_id: QueueId
    after_message_id: U63 = 0


@response(0x2E, BROKER)
class GetMessagesResponse(Packet, frozen=True):
    """The next messages in the queue, and whether there are more."""

    messages: MessagePage
    more: bool = False


@request(0x31, CLIENT)
class PutMessage(Packet, frozen=True):
    """Put a message in one queue or several."""

    queue_ids: Annotated[tuple[QueueId, ...], Meta(min_length=1, max_length=QUEUE_IDS_MAX)]
    receiver_id: ClientId | None
    context: U63 | None
    priority: Priority
    message: Payload


@response(0x32, BROKER)
class PutMessageResponse(Packet, frozen=True):
    """The queues that got the message; one that does not exist is left out."""

    queue_ids: Annotated[tuple[QueueId, ...], Meta(max_length=QUEUE_IDS_MAX)]


@request(0x33, CLIENT)
class ReadMessage(Packet, frozen=True):
    """Take one message out of a queue: for anyone or for this client, optionally from one sender only."""

    queue_id: QueueId
    sender_id: ClientId | None
    mode: ReadMode
    wait_ms: U32 = 0


@response(0x34, BROKER)
class ReadMessageResponse(Packet, frozen=True):
    """The message, or none when the queue had none in time."""

    messages: AtMostOne


@request(0x35, CLIENT)
class ReadResponse(Packet, frozen=True):
    """Take the message that answers a request this client put with that context."""

    queue_id: QueueId
    context: U63
    wait_ms: U32 = 0


@response(0x36, BROKER)
class ReadResponseResponse(Packet, frozen=True):
    """The answer, or none when there was none in time."""

    messages: AtMostOne
