"""The reference storage: plain dictionaries and full scans, so that each rule can be read in one place.

It is the oracle of the conformance suite and serves tests and embedded trials. Nothing survives the process, and every take
scans its queue.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from msgspec.structs import replace as replace_fields

from postroad.errors import NameTakenError, UnknownBindingError, UnknownClientError, UnknownQueueError
from postroad.storage.queues.base import (
    OVERLAY_SENDER,
    PROMOTE_ROWS_MAX,
    Binding,
    Client,
    ClientMode,
    FeedRow,
    Lease,
    LeaseStatus,
    Message,
    NewMessage,
    Promotion,
    PutResult,
    Queue,
    QueueDepth,
    QueueSettings,
    State,
    TakeRequest,
    VisibleCallback,
    in_reading_order,
)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Row:
    message: Message
    due_ms: int | None = None  # scheduled: when it becomes visible; leased: when the lease ends
    expires_ms: int | None = None
    leased_by: int | None = None

    def expired(self, now: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now


class MemoryQueueStorage:
    """See `QueueStorage`."""

    def __init__(self, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._clients: dict[int, Client] = {}
        self._client_keys: dict[int, bytes] = {}
        self._queues: dict[int, Queue] = {}
        self._rows: dict[int, _Row] = {}
        self._keys: dict[tuple[int, int, bytes], tuple[int, int]] = {}  # (queue, sender, key) -> (message id, put at)
        self._bindings: dict[int, Binding] = {}
        self._cursors: dict[tuple[int, int], int] = {}
        self._client_ids, self._queue_ids, self._message_ids, self._binding_ids = count(1), count(1), count(1), count(1)

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    def on_visible(self, callback: VisibleCallback) -> None:
        """Nothing to report: there is no other process."""

    async def watch(self, _queue_id: int) -> None:
        return

    async def unwatch(self, _queue_id: int) -> None:
        return

    # clients

    async def request_id(self, name: str, mode: ClientMode, key: bytes | None = None) -> Client:
        known = next((c for c in self._clients.values() if c.name == name), None)
        if known is not None:
            if key is None or self._client_keys.get(known.client_id) != key:
                raise NameTakenError(f"a client named {name!r} exists already")
            return known
        client = Client(next(self._client_ids), name, mode)
        self._clients[client.client_id] = client
        if key is not None:
            self._client_keys[client.client_id] = key
        return client

    async def identify(self, client_id: int) -> Client:
        if client_id not in self._clients:
            raise UnknownClientError(f"no client has the id {client_id}")
        return self._clients[client_id]

    async def find_client(self, name: str) -> Client:
        found = next((c for c in self._clients.values() if c.name == name), None)
        if found is None:
            raise UnknownClientError(f"no client is named {name!r}")
        return found

    async def delete_client(self, client_id: int) -> None:
        if self._clients.pop(client_id, None) is None:
            raise UnknownClientError(f"no client has the id {client_id}")
        self._client_keys.pop(client_id, None)

    # queues

    async def create_queue(self, name: str, settings: QueueSettings = QueueSettings()) -> Queue:  # noqa: B008 - frozen
        if settings.dead_letter_id is not None:
            self._queue(settings.dead_letter_id)
        if any(q.name == name for q in self._queues.values()):
            raise NameTakenError(f"a queue named {name!r} exists already")
        queue = Queue(next(self._queue_ids), name, settings)
        self._queues[queue.queue_id] = queue
        return queue

    async def delete_queue(self, queue_id: int) -> None:
        self._queue(queue_id)
        del self._queues[queue_id]
        self._rows = {i: r for i, r in self._rows.items() if r.message.queue_id != queue_id}
        self._keys = {k: v for k, v in self._keys.items() if k[0] != queue_id}
        for binding in [b for b in self._bindings.values() if b.queue_id == queue_id]:
            await self.unbind(binding.binding_id)

    async def get_queue_id(self, name: str) -> Queue:
        for queue in self._queues.values():
            if queue.name == name:
                return queue
        raise UnknownQueueError(f"no queue is named {name!r}")

    async def get_queue_name(self, queue_id: int) -> Queue:
        return self._queue(queue_id)

    async def list_queues(self, *, after: int = 0, limit: int) -> list[Queue]:
        return [q for i, q in sorted(self._queues.items()) if i > after][:limit]

    async def get_active_queues(self, client_id: int, *, after: int = 0, limit: int) -> list[Queue]:
        now = self._clock_ms()
        active = {
            r.message.queue_id for r in self._rows.values() if _waits(r, now) and r.message.receiver_id in (None, client_id)
        }
        return [q for i, q in sorted(self._queues.items()) if i > after and i in active][:limit]

    async def configure_queue(self, queue_id: int, settings: QueueSettings) -> Queue:
        queue = replace(self._queue(queue_id), settings=settings)
        if settings.dead_letter_id is not None:
            self._queue(settings.dead_letter_id)
        self._queues[queue_id] = queue
        return queue

    async def get_messages_from_queue(self, queue_id: int, *, after: int = 0, limit: int, bytes_max: int) -> list[Message]:
        self._queue(queue_id)
        now = self._clock_ms()
        rows = (r for i, r in sorted(self._rows.items()) if i > after and r.message.queue_id == queue_id)
        return _within([r.message for r in rows if r.message.state is State.LEASED or not r.expired(now)][:limit], bytes_max)

    # messages

    async def put(self, rows: Sequence[NewMessage]) -> list[PutResult]:
        return [self._put(row) for row in rows]

    def _put(self, new: NewMessage) -> PutResult:
        now = self._clock_ms()
        if new.queue_id not in self._queues:
            return PutResult(None)
        if new.key is not None:
            known = self._keys.get((new.queue_id, new.sender_id, new.key))
            if known is not None:
                return PutResult(known[0], duplicate=True)
        message_id = next(self._message_ids)
        if new.key is not None:
            self._keys[new.queue_id, new.sender_id, new.key] = (message_id, now)
        message = Message(
            message_id,
            new.queue_id,
            new.sender_id,
            new.receiver_id,
            new.context,
            new.priority,
            now,
            new.payload,
            state=State.SCHEDULED if new.delay_ms else State.WAITING,
            key=new.key,
            packed_attributes=new.attributes,
        )
        self._rows[message_id] = _Row(
            message,
            due_ms=now + new.delay_ms if new.delay_ms else None,
            expires_ms=None if new.ttl_ms is None else now + new.ttl_ms,
        )
        if new.lease_to is not None:
            lease_ms = self._queues[new.queue_id].settings.lease_ms if new.lease_ms is None else new.lease_ms
            self._hand_over(message_id, new.lease_to, lease_ms, now)
        return PutResult(message_id, time_of_arrival_ms=now)

    async def take(self, request: TakeRequest) -> list[Message]:
        queue, now = self._queue(request.queue_id), self._clock_ms()
        lease_ms = queue.settings.lease_ms if request.lease_ms is None else request.lease_ms
        fitting = [r.message for r in self._rows.values() if _waits(r, now) and _fits(r.message, request)]
        taken = _within(in_reading_order(fitting, request.mode)[: request.limit], request.bytes_max)
        return [self._hand_over(m.message_id, request.client_id, lease_ms, now) for m in taken]

    def _hand_over(self, message_id: int, client_id: int, lease_ms: int, now: int) -> Message:
        row = self._rows[message_id]
        row.message = replace_fields(row.message, state=State.LEASED, delivery=row.message.delivery + 1)
        row.due_ms, row.leased_by = now + lease_ms, client_id
        if lease_ms == 0:
            del self._rows[message_id]
        return row.message

    async def done(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        statuses = []
        for lease in leases:
            status = self._status(lease)
            if status is LeaseStatus.HELD:
                del self._rows[lease.message_id]
            statuses.append(status)
        return statuses

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0, undelivered: bool = False) -> list[LeaseStatus]:
        now, statuses = self._clock_ms(), []
        for lease in leases:
            status = self._status(lease)
            if status is LeaseStatus.HELD:
                self._give_back(self._rows[lease.message_id], now, delay_ms=delay_ms, undelivered=undelivered)
            statuses.append(status)
        return statuses

    async def extend(self, leases: Sequence[Lease], *, lease_ms: int) -> list[LeaseStatus]:
        now, statuses = self._clock_ms(), []
        for lease in leases:
            status = self._status(lease)
            if status is LeaseStatus.HELD:
                self._rows[lease.message_id].due_ms = now + lease_ms
            statuses.append(status)
        return statuses

    def _give_back(self, row: _Row, now: int, *, delay_ms: int = 0, undelivered: bool = False) -> bool:
        """Return whether the message went to the dead letters."""
        message, settings = row.message, self._queues[row.message.queue_id].settings
        spent = 0 < settings.max_deliveries <= message.delivery and not undelivered
        dead = spent and settings.dead_letter_id in self._queues
        row.leased_by = None
        if dead:
            assert settings.dead_letter_id is not None
            row.message = replace_fields(
                message, queue_id=settings.dead_letter_id, origin_queue_id=message.queue_id, state=State.WAITING
            )
            row.due_ms = row.expires_ms = None
        else:
            row.message = replace_fields(message, state=State.SCHEDULED if delay_ms else State.WAITING)
            row.due_ms = now + delay_ms if delay_ms else None
        return dead

    def _status(self, lease: Lease) -> LeaseStatus:
        row = self._rows.get(lease.message_id)
        if row is None:
            return LeaseStatus.ABSENT
        held = row.message.state is State.LEASED and row.leased_by == lease.client_id and row.message.queue_id == lease.queue_id
        return LeaseStatus.HELD if held and row.message.delivery == lease.delivery else LeaseStatus.LOST

    # the clockwork

    async def promote(self, *, rows_max: int = PROMOTE_ROWS_MAX) -> Promotion:
        now, visible, dead = self._clock_ms(), Counter[int](), 0
        due = sorted((r.due_ms, i) for i, r in self._rows.items() if r.due_ms is not None and r.due_ms <= now)
        for _, message_id in due[:rows_max]:
            row = self._rows[message_id]
            dead += self._give_back(row, now, undelivered=row.message.state is State.SCHEDULED)
            visible[row.message.queue_id] += 1
        gone = [i for i, r in self._rows.items() if r.expired(now) and r.message.state is not State.LEASED][:rows_max]
        for message_id in gone:
            del self._rows[message_id]
        return Promotion(visible, dead, len(gone), self._next_due_ms(now))

    def _next_due_ms(self, now: int) -> int | None:
        times = [r.due_ms for r in self._rows.values() if r.due_ms is not None]
        times += [r.expires_ms for r in self._rows.values() if r.expires_ms is not None and r.message.state is not State.LEASED]
        return max(0, min(times) - now) if times else None

    async def forget_keys(self, *, older_than_ms: int, rows_max: int = PROMOTE_ROWS_MAX) -> int:
        before = self._clock_ms() - older_than_ms
        old = [k for k, (_, put_ms) in self._keys.items() if put_ms < before][:rows_max]
        for key in old:
            del self._keys[key]
        return len(old)

    async def depth(self, queue_id: int) -> QueueDepth:
        self._queue(queue_id)
        rows = [r.message for r in self._rows.values() if r.message.queue_id == queue_id]
        states = Counter(m.state for m in rows)
        arrivals = [m.time_of_arrival_ms for m in rows if m.state is State.WAITING]
        oldest = max(0, self._clock_ms() - min(arrivals)) if arrivals else None
        return QueueDepth(states[State.WAITING], states[State.SCHEDULED], states[State.LEASED], oldest)

    async def depth_by_priority(self, queue_id: int) -> dict[int, int]:
        self._queue(queue_id)
        rows = (r.message for r in self._rows.values())
        return dict(Counter(m.priority for m in rows if m.queue_id == queue_id and m.state is State.WAITING))

    # bound queues

    async def bind(self, queue_id: int, filter_text: str, *, priority: int = 5) -> Binding:
        self._queue(queue_id)
        binding = Binding(next(self._binding_ids), queue_id, filter_text, priority)
        self._bindings[binding.binding_id] = binding
        return binding

    async def unbind(self, binding_id: int) -> None:
        self._binding(binding_id)
        del self._bindings[binding_id]
        self._cursors = {k: t for k, t in self._cursors.items() if k[0] != binding_id}

    async def bindings(self) -> list[Binding]:
        return [b for _, b in sorted(self._bindings.items())]

    async def claim(self, binding_id: int, *, for_ms: int) -> bool:  # noqa: ARG002 - there is no other process
        self._binding(binding_id)
        return True

    async def cursors(self, binding_id: int) -> dict[int, int]:
        self._binding(binding_id)
        return {pubend: tick for (b, pubend), tick in sorted(self._cursors.items()) if b == binding_id}

    async def feed(self, binding_id: int, pubend: int, upto: int, rows: Sequence[FeedRow]) -> int:
        binding = self._binding(binding_id)
        cursor = self._cursors.get((binding_id, pubend), -1)
        fresh = [r for r in rows if cursor < r.tick <= upto]
        put = [self._put(new_message(binding, row)) for row in fresh]
        self._cursors[binding_id, pubend] = max(cursor, upto)
        return sum(not result.duplicate for result in put)

    def _queue(self, queue_id: int) -> Queue:
        if queue_id not in self._queues:
            raise UnknownQueueError(f"no queue has the id {queue_id}")
        return self._queues[queue_id]

    def _binding(self, binding_id: int) -> Binding:
        if binding_id not in self._bindings:
            raise UnknownBindingError(f"no binding has the id {binding_id}")
        return self._bindings[binding_id]


def new_message(binding: Binding, row: FeedRow) -> NewMessage:
    return NewMessage(
        binding.queue_id, OVERLAY_SENDER, row.payload, priority=binding.priority, key=row.key, attributes=row.attributes
    )


def _waits(row: _Row, now: int) -> bool:
    return row.message.state is State.WAITING and not row.expired(now)


def _fits(message: Message, request: TakeRequest) -> bool:
    if message.queue_id != request.queue_id:
        return False
    if request.context is not None:
        return message.receiver_id == request.client_id and message.context == request.context
    return message.receiver_id in (None, request.client_id) and request.sender_id in (None, message.sender_id)


def _within(messages: Iterable[Message], bytes_max: int) -> list[Message]:
    """Return the first messages whose payloads fit; the first always does, so that a reader gets on."""
    kept: list[Message] = []
    total = 0
    for message in messages:
        total += len(message.message)
        if kept and total > bytes_max:
            break
        kept.append(message)
    return kept
