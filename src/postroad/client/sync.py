"""The same names, blocking: a thin face over the asyncio client, which runs in a thread of its own.

    with postroad.sync.connect("postroad://127.0.0.1:7400") as client:
        client.publish({"symbol": "IBM", "price": 101.5}, b"...")

Each call is a round trip to that thread (about 50 us); use `publish_many` and `batches()` where rates matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self, overload

from postroad.client import connection, publisher, subscription
from postroad.client.connection import ClientConfig
from postroad.errors import PublishRefusedError
from postroad.transport.background import BackgroundLoop, Blocking, iterate, run, wait_for, wait_for_twin


def connect(
    urls: str | Iterable[str] | None = None,
    config: ClientConfig | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
) -> Client:
    """Return a client to be used with `with`; the arguments are those of `postroad.connect`.

    with postroad.sync.connect("postroad://127.0.0.1:7400") as client:
        client.publish({"symbol": "ACME"}, b"payload")
    """
    return Client(connection.connect(urls, config, name=name, timeout=timeout))


class Message(subscription.Message):
    """See `postroad.Message`; `ack` blocks."""

    __slots__ = ("_loop",)

    def __init__(self, loop: BackgroundLoop, received: subscription.Message) -> None:
        super().__init__(received._columns, received._row, received._given)  # noqa: SLF001  # the same message
        self._loop = loop

    def ack(self, *, wait: bool = True) -> None:  # type: ignore[override]  # blocking, as everything here
        """See `postroad.Message.ack`."""
        self._loop.call(super().ack(wait=wait))


class Publisher(Blocking[publisher.Publisher]):
    """See `postroad.client.publisher.Publisher`."""

    publish = wait_for(publisher.Publisher.publish)
    publish_many = wait_for(publisher.Publisher.publish_many)
    confirmed = wait_for(publisher.Publisher.confirmed)
    flush = wait_for(publisher.Publisher.flush)
    doubtful = run(publisher.Publisher.doubtful)
    close = wait_for(publisher.Publisher.close)

    @property
    def outstanding(self) -> int:
        return self.inner.outstanding

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)


class Subscription(Blocking[subscription.Subscription]):
    """See `postroad.client.subscription.Subscription`."""

    batches = iterate(subscription.Subscription.batches)
    positions = run(subscription.Subscription.positions)
    close = wait_for(subscription.Subscription.close)

    @property
    def filter(self) -> str:
        return self.inner.filter

    @property
    def name(self) -> str | None:
        return self.inner.name

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def starts(self) -> dict[int, int]:
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
        self.loop.call(self.inner.run(lambda message: handler(Message(self.loop, message)), concurrency=concurrency))

    def ack(self, message: Message | None = None, *, wait: bool = True) -> None:
        """See `postroad.Subscription.ack`."""
        self.loop.call(self.inner.ack(message, wait=wait))


class Client(Blocking[connection.Client]):
    """See `postroad.client.connection.Client`."""

    durables = wait_for(connection.Client.durables)
    explain = wait_for(connection.Client.explain)
    forget = wait_for(connection.Client.forget)
    publish = wait_for(connection.Client.publish)
    pubends = wait_for(connection.Client.pubends)
    read = iterate(connection.Client.read)
    subscribe = wait_for_twin(connection.Client.subscribe, Subscription)
    trace = wait_for(connection.Client.trace)
    trace_many = wait_for(connection.Client.trace_many)

    def __init__(self, inner: connection.Client) -> None:
        self.inner = inner

    def __enter__(self) -> Self:
        self.loop = BackgroundLoop("postroad-client")
        try:
            self.loop.call(self.inner.__aenter__())
        except BaseException:
            self.loop.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)

    def close(self, *, flush: bool = True) -> None:
        try:
            self.loop.call(self.inner.close(flush=flush))
        finally:
            self.loop.stop()

    @property
    def broker(self) -> int | None:
        return self.inner.broker

    def publisher(self, *, on_refused: Callable[[PublishRefusedError], None] | None = None) -> Publisher:
        return Publisher(self.loop, self._publisher(on_refused=on_refused))

    _publisher = run(connection.Client.publisher)
