"""The same names, blocking: a thin face over the asyncio client, which runs in a thread of its own.

Each call is a round trip to that thread (about 50 us); use `publish_many` and `batches()` where rates matter.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Self, overload

from postroad.client import connection, publisher, queues, subscription, telesto
from postroad.client.connection import ClientConfig
from postroad.client.payloads import JsonPayload
from postroad.core.session.publishing import Throttled
from postroad.errors import PublishRefusedError
from postroad.security.credentials import Tls
from postroad.transport.background import BackgroundLoop, Blocking, iterate, run, wait_for, wait_for_twin
from postroad.types import AttributeValue
from postroad.wire.packets.telesto import QueueMessage


def connect(
    urls: str | Iterable[str] | None = None,
    config: ClientConfig | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
    tls: Tls = None,
    token: str | None = None,
) -> Client:
    """Connect and return the client; the arguments are those of `postroad.connect`.

    ```python
    with postroad.sync.connect() as client:
        client.publish({"symbol": "ACME"}, b"payload")
    ```

    Where a `with` does not fit, as in a notebook, call `close` at the end.
    """
    return Client(connection.connect(urls, config, name=name, timeout=timeout, tls=tls, token=token))


class Message(subscription.Message):
    """See `postroad.Message`; `ack` blocks.

    ```python
    with postroad.sync.connect() as client:
        quotes = client.subscribe("symbol = 'ACME'", name="blocking ticker")
        client.publish({"symbol": "ACME", "price": 101.5})
        message = quotes.get(timeout=5)
        print(message.time, message["price"])
        message.ack()
    ```
    """

    __slots__ = ("_loop",)

    def __init__(self, loop: BackgroundLoop, received: subscription.Message) -> None:
        super().__init__(received._columns, received._row, received._given)  # the same message
        self._loop = loop

    def ack(self, *, wait: bool = True) -> None:  # type: ignore[override]  # blocking, as everything here
        """See `postroad.Message.ack`."""
        self._loop.call(super().ack(wait=wait))


class Publisher(Blocking[publisher.Publisher]):
    """See `postroad.Publisher`.

    ```python
    with postroad.sync.connect() as client, client.publisher() as publisher:
        publisher.publish_many({"symbol": ["ACME", "HOOLI"], "price": [101.5, 99.0]}, [b"", b""])
        publisher.flush()
    ```
    """

    publish = wait_for(publisher.Publisher.publish)
    try_publish = run(publisher.Publisher.try_publish)
    publish_many = wait_for(publisher.Publisher.publish_many)
    confirmed = wait_for(publisher.Publisher.confirmed)
    flush = wait_for(publisher.Publisher.flush)
    doubtful = run(publisher.Publisher.doubtful)
    close = wait_for(publisher.Publisher.close)

    @property
    def outstanding(self) -> int:
        """How many messages are published and not confirmed yet."""
        return self.inner.outstanding

    @property
    def throttled(self) -> Throttled | None:
        """See `postroad.Publisher.throttled`."""
        return self.inner.throttled

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)


class Subscription(Blocking[subscription.Subscription]):
    """See `postroad.Subscription`.

    ```python
    with postroad.sync.connect() as client, client.subscribe("symbol = 'ACME'") as quotes:
        client.publish({"symbol": "ACME", "price": 101.5})
        for message in quotes:
            print(message["price"])
            break
    ```
    """

    batches = iterate(subscription.Subscription.batches)
    positions = run(subscription.Subscription.positions)
    close = wait_for(subscription.Subscription.close)

    @property
    def filter(self) -> str:
        """The filter, as text."""
        return self.inner.filter

    @property
    def name(self) -> str | None:
        """The name of a durable subscription, else None."""
        return self.inner.name

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def starts(self) -> dict[int, int]:
        """Where the subscription began, by stream."""
        return dict(self.inner.starts)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            return self._next()
        except StopAsyncIteration:
            raise StopIteration from None

    _next = wait_for_twin(subscription.Subscription.__anext__, Message)

    @overload
    def get(self) -> Message: ...

    @overload
    def get(self, timeout: float | None) -> Message | None: ...

    def get(self, timeout: float | None = None) -> Message | None:
        """See `postroad.Subscription.get`."""
        found = self.loop.call(self.inner.get(timeout))
        return None if found is None else Message(self.loop, found)

    def fetch(self, limit: int, *, timeout: float | None = None) -> list[Message]:
        """See `postroad.Subscription.fetch`."""
        return [Message(self.loop, each) for each in self.loop.call(self.inner.fetch(limit, timeout=timeout))]

    def run(self, handler: Callable[[Message], Any], *, concurrency: int = 8) -> None:
        """See `postroad.Subscription.run`; the handler runs in threads, `concurrency` of them at a time."""
        run_all = self.inner.run(lambda message: handler(Message(self.loop, message)), concurrency=concurrency)
        self.loop.call_to_the_end(run_all)

    def ack(self, message: Message | None = None, *, wait: bool = True) -> None:
        """See `postroad.Subscription.ack`."""
        self.loop.call(self.inner.ack(message, wait=wait))


class Delivery(Blocking[telesto.Delivery], JsonPayload):
    """See `postroad.Delivery`. As a context manager: done when the block ends, released when it raises.

    ```python
    with postroad.sync.connect() as client:
        client.queue("jobs").put(b"resize 17.png")
        with client.queue("jobs").take(timeout=5) as delivery:
            print(delivery.payload)
    ```
    """

    done = wait_for(telesto.Delivery.done)
    extend = wait_for(telesto.Delivery.extend)
    release = wait_for(telesto.Delivery.release)
    reply = wait_for(telesto.Delivery.reply)
    __exit__ = wait_for(telesto.Delivery.__aexit__)

    @property
    def message(self) -> QueueMessage:
        """The message as the service stores it."""
        return self.inner.message

    @property
    def payload(self) -> bytes:
        """The payload, as bytes."""
        return self.inner.payload

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """See `postroad.Delivery.attributes`."""
        return self.inner.attributes

    @property
    def time(self) -> datetime:
        """When it arrived in the queue."""
        return self.inner.time

    @property
    def delivery(self) -> int:
        """See `postroad.Delivery.delivery`."""
        return self.inner.delivery


class WorkQueue(Blocking[queues.WorkQueue]):
    """See `postroad.WorkQueue`. Handlers run in threads, `concurrency` of them at a time.

    ```python
    with postroad.sync.connect() as client:
        jobs = client.queue("jobs")
        jobs.put(json={"image": 17})
        job = jobs.take(timeout=5)
        print(job.json())
        job.done()
    ```
    """

    bind = wait_for(queues.WorkQueue.bind)
    declare = wait_for(queues.WorkQueue.declare)
    delete = wait_for(queues.WorkQueue.delete)
    messages = iterate(queues.WorkQueue.messages)
    put = wait_for(queues.WorkQueue.put)
    put_many = wait_for(queues.WorkQueue.put_many)
    redrive = wait_for(queues.WorkQueue.redrive)
    request = wait_for(queues.WorkQueue.request)
    stats = wait_for(queues.WorkQueue.stats)
    unbind = wait_for(queues.WorkQueue.unbind)

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.inner.name

    @property
    def dead(self) -> WorkQueue:
        """The queue of messages that failed too often."""
        return WorkQueue(self.loop, self.inner.dead)

    @overload
    def take(self, *, lease: float | None = None, sender: int | None = None) -> Delivery: ...

    @overload
    def take(self, timeout: float | None, *, lease: float | None = None, sender: int | None = None) -> Delivery | None: ...

    def take(self, timeout: float | None = None, *, lease: float | None = None, sender: int | None = None) -> Delivery | None:
        """See `postroad.WorkQueue.take`."""
        taken = self.loop.call(self.inner.take(timeout, lease=lease, sender=sender))
        return None if taken is None else Delivery(self.loop, taken)

    def take_many(
        self, limit: int, *, timeout: float | None = None, lease: float | None = None, sender: int | None = None
    ) -> list[Delivery]:
        """See `postroad.WorkQueue.take_many`."""
        taken = self.loop.call(self.inner.take_many(limit, timeout=timeout, lease=lease, sender=sender))
        return [Delivery(self.loop, each) for each in taken]

    def work(
        self,
        handler: Callable[[Delivery], Any],
        *,
        concurrency: int = 8,
        retries: int = 5,
        backoff: queues.Backoff = 1.0,
        lease: float = queues.LEASE_S,
    ) -> None:
        """See `postroad.WorkQueue.work`. Ctrl-C waits for the handlers that have begun."""
        work = self.inner.work(self._handler(handler), concurrency=concurrency, retries=retries, backoff=backoff, lease=lease)
        self.loop.call_to_the_end(work)

    def serve(self, handler: Callable[[Delivery], Any], *, concurrency: int = 8, lease: float = queues.LEASE_S) -> None:
        """See `postroad.WorkQueue.serve`."""
        self.loop.call_to_the_end(self.inner.serve(self._handler(handler), concurrency=concurrency, lease=lease))

    def _handler(self, handler: Callable[[Delivery], Any]) -> Callable[[telesto.Delivery], Any]:
        return lambda delivery: handler(Delivery(self.loop, delivery))


class Client(Blocking[connection.Client]):
    """See `postroad.Client`. Made by `connect`; it is connected until it is closed.

    ```python
    with postroad.sync.connect() as client:
        quotes = client.subscribe("symbol = 'ACME'")
        client.publish({"symbol": "ACME", "price": 101.5}, json={"note": "up"})
        print(quotes.get(timeout=5))
    ```
    """

    admission_state = wait_for(connection.Client.admission_state)
    advertise = wait_for(connection.Client.advertise)
    brokers = wait_for(connection.Client.brokers)
    durables = wait_for(connection.Client.durables)
    explain = wait_for(connection.Client.explain)
    explain_subscription = wait_for(connection.Client.explain_subscription)
    forget = wait_for(connection.Client.forget)
    limit_link = wait_for(connection.Client.limit_link)
    message = wait_for(connection.Client.message)
    publish = wait_for(connection.Client.publish)
    pubends = wait_for(connection.Client.pubends)
    read = iterate(connection.Client.read)
    status = wait_for(connection.Client.status)
    subscribe = wait_for_twin(connection.Client.subscribe, Subscription)
    trace = wait_for(connection.Client.trace)
    trace_many = wait_for(connection.Client.trace_many)
    unadvertise = wait_for(connection.Client.unadvertise)

    def __init__(self, inner: connection.Client) -> None:
        super().__init__(BackgroundLoop("postroad-client"), inner)
        try:
            self.loop.call(inner.__aenter__())
        except BaseException:
            self.loop.stop()
            raise
        atexit.register(self.close)  # a program that forgets it leaves in order all the same

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)

    def close(self, *, flush: bool = True) -> None:
        """See `postroad.Client.close`."""
        atexit.unregister(self.close)
        if self._closed:
            return
        self._closed = True
        try:
            self.loop.call(self.inner.close(flush=flush))
        finally:
            self.loop.stop()

    _closed = False

    @property
    def broker(self) -> int | None:
        """The id of the broker the client is connected to now."""
        return self.inner.broker

    def publisher(self, *, on_refused: Callable[[PublishRefusedError], None] | None = None) -> Publisher:
        """See `postroad.Client.publisher`."""
        return Publisher(self.loop, self._publisher(on_refused=on_refused))

    _publisher = run(connection.Client.publisher)

    def queue(
        self, name: str, *, lease: float | None = None, max_deliveries: int | None = None, dead_letter: str | None = None
    ) -> WorkQueue:
        """See `postroad.Client.queue`."""
        inner = self.inner.queue(name, lease=lease, max_deliveries=max_deliveries, dead_letter=dead_letter)
        return WorkQueue(self.loop, inner)
