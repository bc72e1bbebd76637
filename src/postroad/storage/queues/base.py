"""What the queues service asks of a storage: entities, requests and the one interface.

Three storages keep it, held together by one conformance suite: `memory` (the readable reference), `sqlite` (embedded) and
`postgres` (shared by many brokers). A storage decides everything that must be atomic: who gets which message, leases and their
delivery numbers, dead letters, idempotency keys, the cursors of bound queues. It checks no names, sizes or rights: that is
the service's work, done before.

Invariants every storage keeps:

- a message is with at most one client: a take hands out waiting messages only and leases them (or deletes them, with
  `lease_ms` 0) in the same transaction;
- the delivery number of a message grows by one with each take and never goes back, so (message, delivery, client) names a
  lease for ever and an older lease can never end a newer one;
- a change is durable when its call returns; a call that raises `StorageUnavailableError` may or may not have happened;
- rows of a bound queue and the cursor that covers them are one transaction;
- puts of one sender become visible in the order of the `put` calls, and get ids in that order. Messages of one priority are
  read in the order of their ids, whatever the clock says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from postroad.wire.packets.queues import LeaseStatus
from postroad.wire.packets.telesto import ClientMode, ReadMode
from postroad.wire.packets.telesto import MessageState as State
from postroad.wire.packets.telesto import QueueMessage as Message

__all__ = [
    "Binding",
    "Client",
    "ClientMode",
    "FeedRow",
    "Lease",
    "LeaseStatus",
    "Message",
    "NewMessage",
    "Promotion",
    "PutResult",
    "Queue",
    "QueueDepth",
    "QueueSettings",
    "QueueStorage",
    "ReadMode",
    "State",
    "TakeRequest",
    "VisibleCallback",
    "in_reading_order",
]

ANYBODY: Final = 0
"""The receiver index key of a message for nobody in particular. Ids start at 1."""

OVERLAY_SENDER: Final = 0
"""The sender of messages that a binding fed in."""

LEASE_MS_DEFAULT: Final = 30_000
PROMOTE_ROWS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Client:
    """Table 3.1."""

    client_id: int
    name: str
    mode: ClientMode


@dataclass(frozen=True, slots=True)
class QueueSettings:
    lease_ms: int = LEASE_MS_DEFAULT
    max_deliveries: int = 0  # 0: no limit; else it needs a dead-letter queue
    dead_letter_id: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """Table 3.2, with the settings this project adds."""

    queue_id: int
    name: str
    settings: QueueSettings = QueueSettings()


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to put. Times count from the storage's now. With `lease_to` it is handed over at once: put as leased."""

    queue_id: int
    sender_id: int
    payload: bytes
    receiver_id: int | None = None
    context: int | None = None
    priority: int = 5
    delay_ms: int = 0
    ttl_ms: int | None = None
    key: bytes | None = None
    attributes: bytes | None = None
    lease_to: int | None = None
    lease_ms: int | None = None  # None: the queue's


class PutResult(msgspec.Struct, frozen=True, gc=False):
    message_id: int | None  # None: the queue does not exist
    duplicate: bool = False  # the key was known; message_id is the earlier message
    time_of_arrival_ms: int = 0


class TakeRequest(msgspec.Struct, frozen=True, gc=False):
    queue_id: int
    client_id: int
    mode: ReadMode = ReadMode.PRIORITY
    sender_id: int | None = None
    context: int | None = None  # given: a response, addressed to this client and with this context
    limit: int = 1
    lease_ms: int | None = None  # None: the queue's; 0: delete at once
    bytes_max: int = 8 << 20


class Lease(msgspec.Struct, frozen=True, gc=False):
    queue_id: int
    message_id: int
    delivery: int
    client_id: int


@dataclass(frozen=True, slots=True)
class Promotion:
    """What the clockwork did. `next_due_ms` counts from now; None: nothing is scheduled, leased or ending."""

    visible: Mapping[int, int]  # queue id -> messages that became visible in it
    dead: int = 0
    expired: int = 0
    next_due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueDepth:
    waiting: int
    scheduled: int
    leased: int
    oldest_age_ms: int | None  # of the oldest waiting message


@dataclass(frozen=True, slots=True)
class Binding:
    binding_id: int
    queue_id: int
    filter_text: str
    priority: int


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One matching message of the overlay. `key` is its message id (16 bytes)."""

    tick: int
    key: bytes
    payload: bytes
    attributes: bytes | None = None


VisibleCallback = Callable[[int | None], None]
"""Called with a queue id, or None when anything may have become visible."""


class QueueStorage(Protocol):
    """See the module's invariants. Methods of Table 3.5 carry its names."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def on_visible(self, callback: VisibleCallback) -> None:
        """Ask to be told of messages that became visible through another process (or might have)."""

    async def watch(self, queue_id: int, /) -> None:
        """From the return of this call on, `on_visible` reports this queue, until `unwatch`."""

    async def unwatch(self, queue_id: int, /) -> None: ...

    # clients
    async def request_id(self, name: str, mode: ClientMode, key: bytes | None = None) -> Client:
        """Register a client. A second call with the key of the first one returns the same client, so it may be repeated."""

    async def identify(self, client_id: int) -> Client: ...

    async def find_client(self, name: str) -> Client: ...

    async def delete_client(self, client_id: int) -> None: ...

    # queues
    async def create_queue(self, name: str, settings: QueueSettings = ..., /) -> Queue:
        """Create a queue with these settings, or raise and create none."""

    async def delete_queue(self, queue_id: int) -> None: ...

    async def get_queue_id(self, name: str) -> Queue: ...

    async def get_queue_name(self, queue_id: int) -> Queue: ...

    async def list_queues(self, *, after: int = 0, limit: int) -> list[Queue]: ...

    async def get_active_queues(self, client_id: int, *, after: int = 0, limit: int) -> list[Queue]: ...

    async def configure_queue(self, queue_id: int, settings: QueueSettings) -> Queue: ...

    async def get_messages_from_queue(self, queue_id: int, *, after: int = 0, limit: int, bytes_max: int) -> list[Message]: ...

    # messages
    async def put(self, rows: Sequence[NewMessage]) -> list[PutResult]: ...

    async def take(self, request: TakeRequest) -> list[Message]: ...

    async def done(self, leases: Sequence[Lease]) -> list[LeaseStatus]: ...

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0, undelivered: bool = False) -> list[LeaseStatus]:
        """Give messages back. `undelivered`: the client never saw them, so this does not send them to the dead letters."""

    async def extend(self, leases: Sequence[Lease], *, lease_ms: int) -> list[LeaseStatus]: ...

    # the clockwork
    async def promote(self, *, rows_max: int = PROMOTE_ROWS_MAX) -> Promotion: ...

    async def forget_keys(self, *, older_than_ms: int, rows_max: int = PROMOTE_ROWS_MAX) -> int: ...

    async def depth(self, queue_id: int) -> QueueDepth: ...

    async def depth_by_priority(self, queue_id: int) -> dict[int, int]:
        """Count the waiting messages of each priority that has some."""

    # bound queues
    async def bind(self, queue_id: int, filter_text: str, *, priority: int = 5) -> Binding: ...

    async def unbind(self, binding_id: int) -> None: ...

    async def bindings(self) -> list[Binding]: ...

    async def claim(self, binding_id: int, *, for_ms: int) -> bool:
        """Become, or stay, the one process that feeds a binding, for a while. Correctness does not hang on it; work does."""

    async def cursors(self, binding_id: int) -> dict[int, int]: ...

    async def feed(self, binding_id: int, pubend: int, upto: int, rows: Sequence[FeedRow]) -> int:
        """Put the rows above the cursor and move it to `upto`, as one change. Return how many messages were put."""


def in_reading_order(messages: list[Message], mode: ReadMode) -> list[Message]:
    if mode is ReadMode.PRIORITY:
        return sorted(messages, key=lambda m: (-m.priority, m.message_id))
    return sorted(messages, key=lambda m: m.message_id)
