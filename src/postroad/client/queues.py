"""Work queues over the client's connection: declare on demand, put, take, work, serve.

A queue is declared by its first use, once per client. Every put has a key, so it is repeated safely after a lost connection and
is one message. A worker keeps its leases while handlers run, gives failed messages back with a growing pause, and moves those
that failed too often, or ended their workers too often, to the dead-letter queue.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from postroad.client.handlers import as_coroutine
from postroad.client.payloads import MISSING
from postroad.client.queue_workers import run_workers
from postroad.client.telesto import WAIT_MS_MAX, Delivery, QueuedMessage, QueueMethods, retried
from postroad.errors import (
    InvalidValueError,
    LeaseLostError,
    NotConnectedError,
    QueueSettingsError,
    RequestFailedError,
    UnknownQueueError,
)
from postroad.types import AttributeValue
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.telesto import ClientMode, Queue, ReadMode
from postroad.wire.registry import Packet

if TYPE_CHECKING:
    from postroad.client.connection import Client
    from postroad.client.link import Link

log = logging.getLogger("postroad.client")

PacketT = TypeVar("PacketT", bound=Packet)
Backoff: TypeAlias = float | Callable[[int], float]

RETRY_S: Final = 10.0
LEASE_S: Final = 30.0
DEAD_SUFFIX: Final = ".dead"
REPLIES_SUFFIX: Final = ".replies"
BACKOFF_S_MAX: Final = 3600.0
REDRIVE_ROWS: Final = 100
ERROR_CHARS_MAX: Final = 500
ERROR: Final = "error"
"""The reserved attribute of a dead letter, and of the answer to a request, that says what went wrong."""
FROM_QUEUE: Final = "from_queue"
"""The reserved attribute of a dead letter that names the queue it failed in."""


class ClientQueues(QueueMethods):
    """The queue methods over a client's connection. The service knows the client by `Client.queue_name`."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client: Final = client
        self._sending: Final = asyncio.Lock()  # requests leave in the order of the calls
        self._introduced: Link | None = None
        self._declared: dict[str, tuple[QueueOptions, Queue]] = {}
        self.client_id = 0

    async def _call(self, packet: Packet, expected: type[PacketT], *, safe: bool = False) -> PacketT:
        async def attempt() -> PacketT:
            async with self._sending:
                link = await self._link()
                answer = await self._client.services.send(link, packet, expected)
            return await answer

        return await retried(attempt, seconds=RETRY_S, safe=safe)

    async def _link(self) -> Link:
        """Return a link over which the service knows who we are."""
        try:
            async with asyncio.timeout(RETRY_S):
                link = await self._client._main_link()
        except TimeoutError:
            raise NotConnectedError(f"no broker could be reached for {RETRY_S:g} s") from None
        if link is not self._introduced:
            register = t.RegisterClient(self._client._queue_name, ClientMode.READ_AND_PUT, existing=True)
            answer = await self._client.services.send(link, register, t.RegisterClientResponse)
            self.client_id = (await answer).client_id
            self._introduced = link
        return link

    async def declare(self, name: str, options: QueueOptions) -> Queue:
        """Return a queue that exists with these options; create it when it does not exist."""
        known = self._declared.get(name)
        if known is not None and known[0] == options:
            return known[1]
        dead = None if options.dead_letter_of(name) is None else await self.open_queue(str(options.dead_letter_of(name)))
        max_deliveries = options.max_deliveries or 0
        try:
            queue = await self.get_queue_by_name(name)
        except UnknownQueueError:
            lease = LEASE_S if options.lease is None else options.lease
            queue = await self.open_queue(name, lease=lease, max_deliveries=max_deliveries, dead_letter=dead)
        if options != QueueOptions():
            found = await self._call(q.GetQueueSettings(queue.queue_id), q.GetQueueSettingsResponse, safe=True)
            _check_settings(name, options, dead, found)
        self._declared[name] = (options, queue)
        return queue

    def undeclare(self, name: str) -> None:
        """Forget that a queue exists: it was deleted."""
        self._declared.pop(name, None)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What a queue is declared with; None for what the caller leaves open."""

    lease: float | None = None
    max_deliveries: int | None = None
    dead_letter: str | None = None

    def dead_letter_of(self, name: str) -> str | None:
        """Return the name of the dead-letter queue that the service is to use, if it is to use one."""
        if self.dead_letter is not None:
            return self.dead_letter
        return name + DEAD_SUFFIX if self.max_deliveries else None


def _check_settings(name: str, options: QueueOptions, dead: Queue | None, found: q.GetQueueSettingsResponse) -> None:
    wrong = []
    if options.lease is not None and round(options.lease * 1000) != found.lease_ms:
        wrong.append(f"lease={found.lease_ms / 1000:g}, not {options.lease:g}")
    if options.max_deliveries is not None and options.max_deliveries != found.max_deliveries:
        wrong.append(f"max_deliveries={found.max_deliveries}, not {options.max_deliveries}")
    if dead is not None and dead.queue_id != found.dead_letter_id:
        wrong.append(f"another dead-letter queue than {dead.queue_name!r}")
    if wrong:
        raise QueueSettingsError(f"the queue {name!r} exists with {'; '.join(wrong)}. Use its settings, or `configure_queue`")


class WorkQueue:
    """A queue: each message is taken by one consumer. Made by `Client.queue`.

    ```python
    jobs = client.queue("jobs")
    await jobs.put(json={"image": 17})
    await jobs.work(handle, concurrency=8, retries=5)  # until it is cancelled
    ```
    """

    def __init__(self, queues: ClientQueues, name: str, options: QueueOptions) -> None:
        self.name: Final = name
        self._queues: Final = queues
        self._options: Final = options

    def __repr__(self) -> str:
        return f"WorkQueue({self.name!r})"

    @property
    def dead(self) -> WorkQueue:
        """The queue of messages that failed too often."""
        return WorkQueue(self._queues, self._options.dead_letter or self.name + DEAD_SUFFIX, QueueOptions())

    async def declare(self) -> Queue:
        """Create the queue if it does not exist, and return its name and id. The other methods do this by themselves."""
        return await self._queues.declare(self.name, self._options)

    # --- putting ---------------------------------------------------------------------------------------------------------

    async def put(
        self,
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
        attributes: Mapping[str, AttributeValue] | None = None,
        priority: int = 5,
        delay: float = 0.0,
        ttl: float | None = None,
        key: bytes | str | None = None,
        receiver: int | None = None,
    ) -> int:
        """Put a message; when this returns, it is stored. Return its id.

        `json` is a value to encode instead of a payload. `priority` is from 1 to 10, the highest. The message can be taken after
        `delay` seconds and is deleted if nobody took it within `ttl` seconds. Puts with the same `key` within a day store one
        message. `receiver` is the id of the only client that may take it.
        """
        queue = await self.declare()
        return await self._queues.put(
            queue,
            payload,
            json=json,
            attributes=attributes,
            receiver=receiver,
            priority=priority,
            delay=delay,
            ttl=ttl,
            key=key or secrets.token_bytes(16),
        )

    async def put_many(self, payloads: Iterable[bytes | str]) -> list[int]:
        """Put many messages, a thousand with each change, and return their ids."""
        queue = await self.declare()
        rows = [
            q.NewMessage(queue.queue_id, each.encode() if isinstance(each, str) else each, key=secrets.token_bytes(16))
            for each in payloads
        ]
        ids: list[int] = []
        for start in range(0, len(rows), q.BATCH_MAX):
            ids += await self._queues.put_batch(rows[start : start + q.BATCH_MAX])
        return ids

    # --- taking ----------------------------------------------------------------------------------------------------------

    @overload
    async def take(self, *, lease: float | None = None, sender: int | None = None) -> Delivery: ...

    @overload
    async def take(self, timeout: float | None, *, lease: float | None = None, sender: int | None = None) -> Delivery | None: ...

    async def take(
        self, timeout: float | None = None, *, lease: float | None = None, sender: int | None = None
    ) -> Delivery | None:
        """Lease the next message; with a `timeout`, None when none comes within so many seconds.

        Nobody else gets the message for `lease` seconds. Use the delivery with `async with`, or call its `done`.
        """
        taken = await self.take_many(1, timeout=timeout, lease=lease, sender=sender)
        return taken[0] if taken else None

    async def take_many(
        self, limit: int, *, timeout: float | None = None, lease: float | None = None, sender: int | None = None
    ) -> list[Delivery]:
        """Wait for a message, at most `timeout` seconds, and lease it with the others that wait, at most `limit`."""
        queue = await self.declare()
        forever = timeout is None
        while True:
            wait = WAIT_MS_MAX / 1000 if timeout is None else timeout
            taking = asyncio.ensure_future(
                self._queues.take_batch(queue, limit, mode=ReadMode.PRIORITY, sender=sender, timeout=wait, lease=lease)
            )
            try:
                taken = await asyncio.shield(taking)
            except asyncio.CancelledError:
                taking.add_done_callback(self._queues.give_back)
                raise
            if taken or not forever:
                return taken

    async def messages(self) -> AsyncIterator[QueuedMessage]:
        """Look at all messages in the queue; they stay there."""
        async for message in self._queues.read_messages(await self.declare()):
            yield QueuedMessage(message)

    # --- working ---------------------------------------------------------------------------------------------------------

    async def work(
        self,
        handler: Callable[[Delivery], Any],
        *,
        concurrency: int = 8,
        retries: int = 5,
        backoff: Backoff = 1.0,
        lease: float = LEASE_S,
    ) -> None:
        """Call a handler with each message, `concurrency` at a time, until this is cancelled.

        A message whose handler returns is done. One whose handler raises is tried again after `backoff` seconds, doubled each
        time (or what `backoff(attempt)` gives), `retries` times; then it moves to the queue `dead` with the attribute `error`.
        The same happens to a message that ended its worker so often. Leases are extended while handlers run. When this is
        cancelled, it takes nothing new, and the handlers that have begun finish.

        A handler is a coroutine function, or a plain function, which runs in a thread.
        """
        queue = await self.declare()
        if retries < 0:
            raise InvalidValueError(f"retries is 0 or more, not {retries}")
        call = as_coroutine(handler)

        async def handle(delivery: Delivery) -> None:
            if delivery.delivery > retries + 1:
                await self._bury(queue, delivery, f"{delivery.delivery - 1} deliveries ended without an answer")
                return
            try:
                await call(delivery)
            except Exception as error:  # noqa: BLE001  # whatever a handler raises is its message's failure
                await self._fail(queue, delivery, error, retries, backoff)
            else:
                await _finish(delivery)

        await run_workers(partial(self.take_many, lease=lease), self._queues, handle, concurrency=concurrency, lease=lease)

    async def _fail(self, queue: Queue, delivery: Delivery, error: Exception, retries: int, backoff: Backoff) -> None:
        log.warning("a handler of the queue %r failed, attempt %d", self.name, delivery.delivery, exc_info=error)
        if delivery.ended:
            return
        with suppress(LeaseLostError):
            if delivery.delivery > retries:
                await self._bury(queue, delivery, f"{type(error).__name__}: {error}")
            else:
                await delivery.release(delay=_pause(backoff, delivery.delivery))

    async def _bury(self, queue: Queue, delivery: Delivery, why: str) -> None:
        """Move a message to the dead-letter queue; a repeated move of the same worker is one dead letter."""
        attributes = {**delivery.attributes, ERROR: why[:ERROR_CHARS_MAX], FROM_QUEUE: self.name}
        message = delivery.message
        key = f"dead {queue.queue_id} {message.message_id}"
        await self.dead.put(message.message, attributes=attributes, priority=message.priority, key=key)
        await _finish(delivery)

    async def redrive(self, limit: int | None = None) -> int:
        """Put the dead letters of this queue back into it, at most `limit`; return how many. Their count of tries begins anew."""
        queue, dead, moved = await self.declare(), self.dead, 0
        others: list[Delivery] = []
        try:
            while limit is None or moved < limit:
                rows = REDRIVE_ROWS if limit is None else min(REDRIVE_ROWS, limit - moved)
                taken = await dead.take_many(rows, timeout=0)
                if not taken:
                    break
                for delivery in taken:
                    if self._is_from_here(queue, delivery):
                        await self._put_back(delivery)
                        moved += 1
                    else:
                        others.append(delivery)
        finally:
            if others:
                await self._queues.release(others)
        return moved

    def _is_from_here(self, queue: Queue, delivery: Delivery) -> bool:
        return delivery.message.origin_queue_id == queue.queue_id or delivery.attributes.get(FROM_QUEUE) == self.name

    async def _put_back(self, delivery: Delivery) -> None:
        message = delivery.message
        attributes = {name: value for name, value in delivery.attributes.items() if name not in {ERROR, FROM_QUEUE}}
        key = f"redrive {message.queue_id} {message.message_id}"
        await self.put(message.message, attributes=attributes, priority=message.priority, key=key)
        await _finish(delivery)

    # --- requests --------------------------------------------------------------------------------------------------------

    async def request(
        self,
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
        attributes: Mapping[str, AttributeValue] | None = None,
        priority: int = 5,
        timeout: float = 30.0,
    ) -> QueuedMessage:
        """Put a request and return the answer of whoever serves the queue. It comes in the queue of this name with `.replies`.

        Raises `NoResponseError` after `timeout` seconds, and `RequestFailedError` when the handler raised an error.
        """
        queue = await self.declare()
        replies = await self._queues.declare(self.name + REPLIES_SUFFIX, QueueOptions())  # where no worker takes them as requests
        found = await self._queues.request(
            queue, payload, json=json, attributes=attributes, priority=priority, timeout=timeout, reply_to=replies
        )
        answer = QueuedMessage(found)
        if ERROR in answer.attributes:
            raise RequestFailedError(str(answer.attributes[ERROR]))
        return answer

    async def serve(self, handler: Callable[[Delivery], Any], *, concurrency: int = 8, lease: float = LEASE_S) -> None:
        """Answer requests, `concurrency` at a time, until this is cancelled.

        The handler returns the answer: bytes, text, or a value to send as JSON. When it raises, the requester gets a
        `RequestFailedError` with the text of the error.
        """
        await self.declare()
        call = as_coroutine(handler)

        async def handle(delivery: Delivery) -> None:
            try:
                answer = await call(delivery)
            except Exception as error:  # the requester is told
                log.warning("a handler that serves the queue %r failed", self.name, exc_info=error)
                await delivery.reply(attributes={ERROR: f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]})
            else:
                await (delivery.reply(answer) if isinstance(answer, bytes | str) else delivery.reply(json=answer))
            await _finish(delivery)

        await run_workers(partial(self.take_many, lease=lease), self._queues, handle, concurrency=concurrency, lease=lease)

    # --- bindings and upkeep ---------------------------------------------------------------------------------------------

    async def bind(self, filter: str, *, priority: int = 5) -> int:  # noqa: A002  # the word of the whole system
        """Put every message of the overlay that matches a filter into the queue, each once; return the binding's id.

        A binding that exists already stays as it is. It begins with messages published about two seconds later.
        """
        queue = await self.declare()
        for each in await self._queues.bindings():
            if (each.queue_id, each.filter_text) == (queue.queue_id, filter):
                return each.binding_id
        return await self._queues.bind(queue, filter, priority=priority)

    async def unbind(self, filter: str | None = None) -> None:  # noqa: A002  # the word of the whole system
        """End the binding to a filter, or all bindings of the queue."""
        queue = await self.declare()
        for each in await self._queues.bindings():
            if each.queue_id == queue.queue_id and filter in {None, each.filter_text}:
                await self._queues.unbind(each.binding_id)

    async def stats(self) -> q.GetQueueStatsResponse:
        """Return how many messages wait, are leased or scheduled, the age of the oldest, and rates."""
        return await self._queues.stats(await self.declare())

    async def delete(self) -> None:
        """Delete the queue and the messages in it."""
        await self._queues.delete_queue(await self.declare())
        self._queues.undeclare(self.name)


async def _finish(delivery: Delivery) -> None:
    if delivery.ended:
        return
    try:
        await delivery.done()
    except LeaseLostError:
        log.warning("a message was finished after its lease had ended; another client may work on it too")


def _pause(backoff: Backoff, attempt: int) -> float:
    pause = backoff(attempt) if callable(backoff) else backoff * 2.0 ** min(attempt - 1, 30)
    return max(0.0, min(pause, BACKOFF_S_MAX))
