"""The queue methods of the Telesto report (its Table 4.1) under pythonic names, and what this project adds to them.

`Client.queues` offers them over the client's connection, `QueueClient` over one of its own. Everyday programs use `Client.queue`,
which is built on them.

Calls that may be repeated without harm are repeated after a lost connection or a database that was away. These are all but: a put
without a key, creating and deleting, and reads without a lease. Leases belong to the client, not to the connection, so work begun
through one broker is finished through another.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from postroad.client.payloads import MISSING, JsonPayload, with_json
from postroad.core.batch.schema import check_message
from postroad.errors import LeaseLostError, NameTakenError, NoResponseError, PostroadError, UnknownQueueError
from postroad.types import AttributeValue
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.queues import LeaseStatus
from postroad.wire.packets.session import Ping, Pong
from postroad.wire.packets.telesto import CONTEXT_MAX, Queue, QueueMessage, ReadMode
from postroad.wire.registry import Packet

PacketT = TypeVar("PacketT", bound=Packet)
ResultT = TypeVar("ResultT")

RETRY_PAUSE_S: Final = 0.05
RETRY_PAUSE_S_MAX: Final = 1.0
REPLY_TTL_S: Final = 3600.0
"""How long an answer waits for a requester that went away."""
WAIT_MS_MAX: Final = 60_000
"""A longer wait is cut into several takes, so that a broker that went away silently is noticed."""

REPLY_TO: Final = "reply_to"
"""The reserved attribute of a request: the id of the queue for its answer, where that is not the queue of the request."""

QueueRef = Queue | int


class QueuedMessage(JsonPayload):
    """A message of a queue, as an application sees it.

    ```python
    await client.queue("jobs").put(json={"image": 17})
    async for message in client.queue("jobs").messages():  # they stay in the queue
        print(message.time, message.attributes, message.json())
    ```
    """

    __slots__ = ("message",)

    def __init__(self, message: QueueMessage) -> None:
        self.message: Final = message

    @property
    def payload(self) -> bytes:
        """The payload, as bytes."""
        return self.message.message

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes it was put with, or those of the message that the overlay fed into a bound queue."""
        return self.message.attributes

    @property
    def time(self) -> datetime:
        """When it arrived in the queue."""
        return datetime.fromtimestamp(self.message.time_of_arrival_ms / 1000, UTC)


class Delivery(QueuedMessage):
    """A leased message. End it with `done` or `release`, or use it as an async context manager.

    ```python
    await client.queue("jobs").put(json={"image": 17})
    async with await client.queue("jobs").take() as delivery:  # done at the end, released when the block raises
        print(delivery.json(), delivery.attributes)
    ```
    """

    __slots__ = ("_client", "ended")

    def __init__(self, client: QueueMethods, message: QueueMessage) -> None:
        super().__init__(message)
        self._client = client
        self.ended = False  # by `done` or `release`

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

    async def reply(
        self,
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
        attributes: Mapping[str, AttributeValue] | None = None,
        priority: int = 5,
    ) -> None:
        """Answer a request: to its sender, with its context, in the queue that the request names or its own."""
        message = self.message
        reply_to = message.attributes.get(REPLY_TO)
        await self._client.put(
            reply_to if type(reply_to) is int else message.queue_id,
            payload,
            json=json,
            attributes=attributes,
            receiver=message.sender_id,
            context=message.context,
            priority=priority,
            ttl=REPLY_TTL_S,
            key=secrets.token_bytes(16),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.ended:
            return
        if kind is None:
            await self.done()
        else:
            await self.release()


class QueueMethods:
    """The methods. Whoever has a connection implements `_call`.

    ```python
    jobs = await client.queues.open_queue("jobs")
    await client.queues.put(jobs, b"resize 17.png", priority=8)
    ```
    """

    client_id: int

    def __init__(self) -> None:
        self._releasing: Final[set[asyncio.Future[None]]] = set()

    async def _call(self, packet: Packet, expected: type[PacketT], *, safe: bool = False) -> PacketT:
        """Send a request and return its answer; a `safe` one may be repeated."""
        raise NotImplementedError

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
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
        attributes: Mapping[str, AttributeValue] | None = None,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 5,
        delay: float = 0.0,
        ttl: float | None = None,
        key: bytes | str | None = None,
    ) -> int:
        """Put a message and return its id. With a `key`, repeating the put is harmless: it is one message."""
        if json is not MISSING:
            attributes, payload = with_json(attributes or {}, payload, json)
        new = q.NewMessage(
            _id(queue),
            _bytes(payload),
            receiver,
            context,
            priority,
            _ms(delay),
            None if ttl is None else _ms(ttl),
            None if key is None else _bytes(key),
            pack_attributes(attributes),
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
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
        attributes: Mapping[str, AttributeValue] | None = None,
        receiver: int | None = None,
        priority: int = 5,
        timeout: float = 30.0,
        reply_to: QueueRef | None = None,
    ) -> QueueMessage:
        """Put a request and return its response, or raise `NoResponseError` after `timeout` seconds.

        The response comes in the queue `reply_to`, by default in the queue of the request. That default needs a client that does
        not also take requests from this queue: it could take the response as one.
        """
        if reply_to is not None:
            attributes = {**(attributes or {}), REPLY_TO: _id(reply_to)}
        context = secrets.randbelow(CONTEXT_MAX) + 1
        key = secrets.token_bytes(16)
        deadline = time.monotonic() + timeout
        await self.put(
            queue,
            payload,
            json=json,
            attributes=attributes,
            receiver=receiver,
            context=context,
            priority=priority,
            key=key,
            ttl=timeout,
        )
        found = await self._take(reply_to or queue, ReadMode.ARRIVAL, None, context, 1, None, deadline)
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
        _end(deliveries)
        _check(
            (await self._call(packet, q.DoneMessagesResponse, safe=True)).statuses,
            deliveries,
            (LeaseStatus.HELD, LeaseStatus.ABSENT),
        )

    async def release(self, deliveries: Sequence[Delivery], *, delay: float = 0.0) -> None:
        packet = q.ReleaseMessages(tuple(map(_lease, deliveries)), _ms(delay))
        _end(deliveries)
        _check((await self._call(packet, q.ReleaseMessagesResponse)).statuses, deliveries, (LeaseStatus.HELD,))

    async def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:
        packet = q.ExtendLeases(tuple(map(_lease, deliveries)), _ms(lease))
        _check((await self._call(packet, q.ExtendLeasesResponse, safe=True)).statuses, deliveries, (LeaseStatus.HELD,))

    def give_back(self, taking: asyncio.Future[list[Delivery]]) -> None:
        """Release what a take brought after its caller had gone away; what cannot be released comes again by itself."""
        if taking.cancelled() or taking.exception() is not None or not taking.result():
            return
        task = asyncio.ensure_future(self.release(taking.result()))
        self._releasing.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Future[None]) -> None:
        self._releasing.discard(task)
        if not task.cancelled():
            task.exception()

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


def _lease(delivery: Delivery) -> q.LeaseRef:
    message = delivery.message
    return q.LeaseRef(message.queue_id, message.message_id, message.delivery)


def _check(statuses: Sequence[LeaseStatus], deliveries: Sequence[Delivery], good: tuple[LeaseStatus, ...]) -> None:
    lost = [d.message.message_id for d, status in zip(deliveries, statuses, strict=True) if status not in good]
    if lost:
        raise LeaseLostError(f"the lease of message {', '.join(map(str, lost[:10]))} has ended; another client may have it")


def _end(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        delivery.ended = True


def pack_attributes(attributes: Mapping[str, AttributeValue] | None) -> bytes | None:
    """Return attributes as they travel in a put, or raise what is wrong with one."""
    return msgspec.msgpack.encode(check_message(attributes, b"")) if attributes else None


async def retried(
    attempt: Callable[[], Awaitable[ResultT]], *, seconds: float, safe: bool = True, closed: Callable[[], bool] = lambda: False
) -> ResultT:
    """Repeat a call that is safe to repeat, for so many seconds, while it fails with an error that may pass."""
    deadline = time.monotonic() + seconds
    pause = RETRY_PAUSE_S
    while True:
        try:
            return await attempt()
        except PostroadError as error:
            if not (safe and error.retryable) or closed() or time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(RETRY_PAUSE_S_MAX, pause * 2)


def _id(queue: QueueRef) -> int:
    return queue if isinstance(queue, int) else queue.queue_id


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
