"""The queue client: the methods of the report's Table 4.1 under pythonic names, and what this project adds.

    async with QueueClient.open("127.0.0.1", 7400, name="worker") as client:
        jobs = await client.open_queue("jobs")
        await client.put(jobs, b"work")
        async with await client.take(jobs, timeout=5) as delivery:   # done when the block ends, released when it raises
            ...

Calls that may be repeated without harm are repeated after a lost connection or a database that was away, at the next
address in turn, for `retry_s` seconds; then the typed error is raised. These are all but: a put without a key, creating and
deleting, and reads without a lease. Leases belong to the client, not to the connection, so work begun through one broker is
finished through another.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from postroad.errors import (
    ConnectionLostError,
    LeaseLostError,
    NameTakenError,
    NoResponseError,
    PostroadError,
    UnknownQueueError,
)
from postroad.queues.connection import Connection
from postroad.queues.limits import CONTEXT_MAX
from postroad.queues.profile import ProfileLog
from postroad.types import AttributeValue
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.queues import LeaseStatus
from postroad.wire.packets.session import Ping, Pong
from postroad.wire.packets.telesto import ClientMode, Queue, QueueMessage, ReadMode
from postroad.wire.registry import Packet

PacketT = TypeVar("PacketT", bound=Packet)
ResultT = TypeVar("ResultT")

RETRY_S: Final = 10.0
RETRY_PAUSE_S: Final = 0.05
RETRY_PAUSE_S_MAX: Final = 1.0
WAIT_MS_MAX: Final = 60_000
"""A longer wait is cut into several takes, so that a broker that went away silently is noticed."""

Address = tuple[str, int]
QueueRef = Queue | int


class Delivery:
    """A leased message. End it with `done` or `release`, or use it as an async context manager."""

    __slots__ = ("_client", "message")

    def __init__(self, client: QueueClient, message: QueueMessage) -> None:
        self._client = client
        self.message: Final = message

    @property
    def payload(self) -> bytes:
        return self.message.message

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of a message that the overlay fed into a bound queue."""
        return self.message.attributes

    @property
    def delivery(self) -> int:
        """How often the message was taken, this time included."""
        return self.message.delivery

    async def done(self) -> None:
        """Say that the message is done. Raises `LeaseLostError` when somebody else may be working on it."""
        await self._client.done([self])

    async def release(self, *, delay: float = 0.0) -> None:
        """Give the message back, visible again at once or after `delay` seconds."""
        await self._client.release([self], delay=delay)

    async def extend(self, lease: float) -> None:
        """Keep the message for `lease` seconds from now."""
        await self._client.extend([self], lease)

    async def reply(self, payload: bytes | str, *, priority: int = 5) -> None:
        """Answer a request: to its sender, in its queue, with its context."""
        message = self.message
        await self._client.put(
            message.queue_id,
            payload,
            receiver=message.sender_id,
            context=message.context,
            priority=priority,
            key=secrets.token_bytes(16),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await self.done()
        else:
            await self.release()


class QueueClient:
    """Made by `open` (the client of a name), `register` (a new one) or `identify` (by id). Use as an async context manager."""

    def __init__(self, addresses: Sequence[Address], *, retry_s: float = RETRY_S, profile: ProfileLog | None = None) -> None:
        """With a `profile`, each call is noted there (`queues/profile.py`); closing it is left to who opened it."""
        self._profile = profile
        self._addresses = list(addresses)
        self._retry_s = retry_s
        self._connection: Connection | None = None
        self._sending = asyncio.Lock()  # requests leave in the order of the calls, also while a connection is opened or full
        self._place = 0
        self._closed = False
        self._new: t.RegisterClient | None = None
        self.client_id = 0
        self.name = ""
        self.mode = ClientMode.READ_AND_PUT

    # setup

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        *,
        name: str,
        mode: ClientMode = ClientMode.READ_AND_PUT,
        others: Sequence[Address] = (),
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
    ) -> Self:
        """Connect as the client of this name; it is registered when it is new, with `mode`. A known one keeps its mode.

        `others` are brokers to go to when this one is lost.
        """
        client = cls([(host, port), *others], retry_s=retry_s, profile=profile)
        client._new = t.RegisterClient(name, mode, existing=True)
        return client

    @classmethod
    def register(
        cls,
        host: str,
        port: int,
        *,
        name: str,
        mode: ClientMode = ClientMode.READ_AND_PUT,
        others: Sequence[Address] = (),
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
    ) -> Self:
        """Connect as a new client, on entering the context or with `connect`; raise `NameTakenError` when the name is known.

        The registration has a key, so it is repeated safely when its answer is lost.
        """
        client = cls([(host, port), *others], retry_s=retry_s, profile=profile)
        client._new = t.RegisterClient(name, mode, key=secrets.token_bytes(16))
        return client

    @classmethod
    def identify(
        cls,
        host: str,
        port: int,
        *,
        client_id: int,
        others: Sequence[Address] = (),
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
    ) -> Self:
        """Connect as an existing client."""
        client = cls([(host, port), *others], retry_s=retry_s, profile=profile)
        client.client_id = client_id
        return client

    async def connect(self) -> Self:
        """Connect; what may pass (no broker there yet, its database away) is tried again for `retry_s` seconds."""

        async def attempt() -> Self:
            async with self._sending:
                await self._connected()
            return self

        return await self._retried(attempt)

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ping(self) -> float:
        """Return the round trip in seconds. Needs no registration."""
        start = time.perf_counter()
        await self._call(Ping(), Pong, safe=True)
        return time.perf_counter() - start

    async def delete_client(self, client_id: int | None = None) -> None:
        """Delete a client, by default this one. Messages addressed to it stay."""
        await self._call(t.DeleteClient(self.client_id if client_id is None else client_id), t.Success)

    # queues

    async def create_queue(
        self, name: str, *, lease: float | None = None, max_deliveries: int = 0, dead_letter: QueueRef | None = None
    ) -> Queue:
        """Create a queue. `lease` in seconds; a limit of deliveries needs a dead-letter queue."""
        dead_letter_id = None if dead_letter is None else _id(dead_letter)
        packet = t.CreateQueue(name, _ms(30.0 if lease is None else lease), max_deliveries, dead_letter_id)
        return Queue((await self._call(packet, t.CreateQueueResponse)).queue_id, name)

    async def open_queue(
        self, name: str, *, lease: float | None = None, max_deliveries: int = 0, dead_letter: QueueRef | None = None
    ) -> Queue:
        """Return the queue of this name; it is created when it is new, with these settings. A known one keeps its own."""
        try:
            return await self.get_queue_by_name(name)
        except UnknownQueueError:
            pass
        try:
            return await self.create_queue(name, lease=lease, max_deliveries=max_deliveries, dead_letter=dead_letter)
        except NameTakenError:  # somebody else was quicker
            return await self.get_queue_by_name(name)

    async def configure_queue(
        self, queue: QueueRef, *, lease: float = 30.0, max_deliveries: int = 0, dead_letter: QueueRef | None = None
    ) -> None:
        dead_letter_id = None if dead_letter is None else _id(dead_letter)
        await self._call(q.ConfigureQueue(_id(queue), _ms(lease), max_deliveries, dead_letter_id), t.Success, safe=True)

    async def delete_queue(self, queue: QueueRef) -> None:
        await self._call(t.DeleteQueue(_id(queue)), t.Success)

    async def get_queue_by_name(self, name: str) -> Queue:
        found = await self._call(t.GetQueueId(name), t.GetQueueIdResponse, safe=True)
        return Queue(found.queue_id, name)

    async def get_queue_by_id(self, queue_id: int) -> Queue:
        found = await self._call(t.GetQueueName(queue_id), t.GetQueueNameResponse, safe=True)
        return Queue(queue_id, found.queue_name)

    async def get_queues(self) -> list[Queue]:
        queues: list[Queue] = []
        while True:
            after = queues[-1].queue_id if queues else 0
            page = await self._call(t.GetQueues(after), t.GetQueuesResponse, safe=True)
            queues += page.queues
            if not page.more:
                return queues

    async def get_active_queues(self) -> list[Queue]:
        """Return the queues that hold messages for this client."""
        queues: list[Queue] = []
        while True:
            after = queues[-1].queue_id if queues else 0
            page = await self._call(t.GetActiveQueues(after), t.GetActiveQueuesResponse, safe=True)
            queues += page.queues
            if not page.more:
                return queues

    async def read_messages(self, queue: QueueRef) -> AsyncIterator[QueueMessage]:
        """Look at all messages of a queue, however many; they stay there."""
        after, more = 0, True
        while more:
            page = await self._call(t.GetMessages(_id(queue), after), t.GetMessagesResponse, safe=True)
            for message in page.messages:
                yield message
            after, more = page.messages[-1].message_id if page.messages else after, page.more

    async def stats(self, queue: QueueRef) -> q.GetQueueStatsResponse:
        return await self._call(q.GetQueueStats(_id(queue)), q.GetQueueStatsResponse, safe=True)

    # putting

    async def put(
        self,
        queue: QueueRef,
        payload: bytes | str,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 5,
        delay: float = 0.0,
        ttl: float | None = None,
        key: bytes | str | None = None,
    ) -> int:
        """Put a message and return its id. With a `key`, repeating the put is harmless: it is one message."""
        new = q.NewMessage(
            _id(queue),
            _bytes(payload),
            receiver,
            context,
            priority,
            _ms(delay),
            None if ttl is None else _ms(ttl),
            None if key is None else _bytes(key),
        )
        (result,) = await self.put_batch([new])
        return result

    async def put_batch(self, messages: Sequence[q.NewMessage]) -> list[int]:
        """Put many messages in one change and return their ids.

        Raises `UnknownQueueError` when a queue does not exist; the messages for the others are put.
        """
        safe = all(m.key is not None for m in messages)
        response = await self._call(q.PutMessages(tuple(messages)), q.PutMessagesResponse, safe=safe)
        missing = sorted({m.queue_id for m, r in zip(messages, response.results, strict=True) if r.message_id is None})
        if missing:
            raise UnknownQueueError(f"no queue has the id {', '.join(map(str, missing))}")
        return [r.message_id for r in response.results if r.message_id is not None]

    async def put_to_many(
        self,
        queues: Iterable[QueueRef],
        payload: bytes | str,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 5,
    ) -> set[int]:
        """Put one message into many queues; return the ids of those that do not exist."""
        wanted = tuple(_id(queue) for queue in queues)
        packet = t.PutMessage(wanted, receiver, context, priority, _bytes(payload))
        return set(wanted) - set((await self._call(packet, t.PutMessageResponse)).queue_ids)

    async def request(
        self,
        queue: QueueRef,
        payload: bytes | str,
        *,
        receiver: int | None = None,
        priority: int = 5,
        timeout: float = 30.0,
    ) -> QueueMessage:
        """Put a request and return its response, or raise `NoResponseError` after `timeout` seconds."""
        context = secrets.randbelow(CONTEXT_MAX) + 1
        key = secrets.token_bytes(16)
        deadline = time.monotonic() + timeout
        await self.put(queue, payload, receiver=receiver, context=context, priority=priority, key=key, ttl=timeout)
        found = await self._take(queue, ReadMode.ARRIVAL, None, context, 1, None, deadline)
        if not found:
            raise NoResponseError(f"no response within {timeout} s to the request with context {context}")
        await self.done([Delivery(self, found[0])])
        return found[0]

    # taking

    async def take(
        self,
        queue: QueueRef,
        *,
        mode: ReadMode = ReadMode.PRIORITY,
        sender: int | None = None,
        timeout: float = 0.0,
        lease: float | None = None,
    ) -> Delivery | None:
        """Lease one message, waiting up to `timeout` seconds for it. `lease` in seconds; the queue's own by default."""
        taken = await self.take_batch(queue, 1, mode=mode, sender=sender, timeout=timeout, lease=lease)
        return taken[0] if taken else None

    async def take_batch(
        self,
        queue: QueueRef,
        limit: int,
        *,
        mode: ReadMode = ReadMode.PRIORITY,
        sender: int | None = None,
        timeout: float = 0.0,
        lease: float | None = None,
    ) -> list[Delivery]:
        """Lease up to `limit` messages, waiting up to `timeout` seconds for the first."""
        lease_ms = None if lease is None else max(1, _ms(lease))
        taken = await self._take(queue, mode, sender, None, limit, lease_ms, time.monotonic() + timeout)
        return [Delivery(self, message) for message in taken]

    async def read(
        self,
        queue: QueueRef,
        *,
        mode: ReadMode = ReadMode.PRIORITY,
        sender: int | None = None,
        timeout: float = 0.0,
    ) -> QueueMessage | None:
        """Take one message without a lease, as the report does: it is gone when it is handed over, arrived or not."""
        packet = t.ReadMessage(_id(queue), sender, mode, _ms(timeout))
        found = (await self._call(packet, t.ReadMessageResponse)).messages
        return found[0] if found else None

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        """End leases. After a repeat, a message that no longer exists was done by the first try."""
        packet = q.DoneMessages(tuple(map(_lease, deliveries)))
        _check(
            (await self._call(packet, q.DoneMessagesResponse, safe=True)).statuses,
            deliveries,
            (LeaseStatus.HELD, LeaseStatus.ABSENT),
        )

    async def release(self, deliveries: Sequence[Delivery], *, delay: float = 0.0) -> None:
        packet = q.ReleaseMessages(tuple(map(_lease, deliveries)), _ms(delay))
        _check((await self._call(packet, q.ReleaseMessagesResponse)).statuses, deliveries, (LeaseStatus.HELD,))

    async def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:
        packet = q.ExtendLeases(tuple(map(_lease, deliveries)), _ms(lease))
        _check((await self._call(packet, q.ExtendLeasesResponse, safe=True)).statuses, deliveries, (LeaseStatus.HELD,))

    # bindings

    async def bind(self, queue: QueueRef, filter_text: str, *, priority: int = 5) -> int:
        """Feed a queue with the overlay's messages that match; return the binding's id."""
        return (await self._call(q.BindQueue(_id(queue), filter_text, priority), q.BindQueueResponse)).binding_id

    async def unbind(self, binding_id: int) -> None:
        await self._call(q.UnbindQueue(binding_id), t.Success)

    async def bindings(self) -> tuple[q.BoundFilter, ...]:
        return (await self._call(q.GetBindings(), q.GetBindingsResponse, safe=True)).bindings

    # below

    async def _take(
        self,
        queue: QueueRef,
        mode: ReadMode,
        sender: int | None,
        context: int | None,
        limit: int,
        lease_ms: int | None,
        deadline: float,
    ) -> tuple[QueueMessage, ...]:
        while True:
            wait_ms = max(0, min(WAIT_MS_MAX, round((deadline - time.monotonic()) * 1000)))
            packet = q.TakeMessages(_id(queue), mode, sender, context, limit, lease_ms, wait_ms)
            taken = (await self._call(packet, q.TakeMessagesResponse, safe=True)).messages
            if taken or time.monotonic() >= deadline:
                return taken

    async def _call(self, packet: Packet, expected: type[PacketT], *, safe: bool = False) -> PacketT:
        async def attempt() -> PacketT:
            async with self._sending:
                connection = await self._connected()
                answer = await connection.send(packet, expected)
            return await answer

        if self._profile is None:
            return await self._retried(attempt, safe=safe)
        begun, outcome = time.perf_counter(), "ok"
        try:
            return await self._retried(attempt, safe=safe)
        except BaseException as error:
            outcome = str(error.code) if isinstance(error, PostroadError) else type(error).__name__
            raise
        finally:
            self._profile.note(type(packet).__name__, self.client_id, time.perf_counter() - begun, outcome)

    async def _retried(self, attempt: Callable[[], Awaitable[ResultT]], *, safe: bool = True) -> ResultT:
        deadline = time.monotonic() + self._retry_s
        pause = RETRY_PAUSE_S
        while True:
            try:
                return await attempt()
            except PostroadError as error:
                if not (safe and error.retryable) or self._closed or time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(RETRY_PAUSE_S_MAX, pause * 2)

    async def _connected(self) -> Connection:
        if self._closed:
            raise ConnectionLostError("this client was closed")
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self._connection = await self._open()
        return self._connection

    async def _open(self) -> Connection:
        """Open a connection to the first address that answers, beginning with the last that did."""
        for _ in self._addresses[1:]:
            try:
                return await self._open_at(self._addresses[self._place])
            except ConnectionLostError:
                self._place = (self._place + 1) % len(self._addresses)
        return await self._open_at(self._addresses[self._place])

    async def _open_at(self, address: Address) -> Connection:
        connection = await Connection.open(*address)
        try:
            await self._introduce(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _introduce(self, connection: Connection) -> None:
        if self._new is not None:
            self.client_id = (await connection.call(self._new, t.RegisterClientResponse)).client_id
            self.name, self.mode, new, self._new = self._new.client_name, self._new.mode, self._new, None
            if not new.existing:
                return
        if self.client_id:
            found = await connection.call(t.IdentifyClient(self.client_id), t.IdentifyClientResponse)
            self.name, self.mode = found.client_name, found.mode


def _lease(delivery: Delivery) -> q.LeaseRef:
    message = delivery.message
    return q.LeaseRef(message.queue_id, message.message_id, message.delivery)


def _check(statuses: Sequence[LeaseStatus], deliveries: Sequence[Delivery], good: tuple[LeaseStatus, ...]) -> None:
    lost = [d.message.message_id for d, status in zip(deliveries, statuses, strict=True) if status not in good]
    if lost:
        raise LeaseLostError(f"the lease of message {', '.join(map(str, lost[:10]))} has ended; another client may have it")


def _id(queue: QueueRef) -> int:
    return queue if isinstance(queue, int) else queue.queue_id


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
