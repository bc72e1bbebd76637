"""The same names, blocking: a thin face over the asyncio client, which runs in a thread of its own.

    with postroad.sync.connect("postroad://127.0.0.1:7400") as client:
        publisher = client.publisher()
        publisher.publish({"symbol": "IBM", "price": 101.5}, b"...")
        publisher.flush()

Each call is a round trip to that thread (about 50 us); use `publish_many` and `batches()` where rates matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from postroad.client import connection, publisher, subscription
from postroad.client.connection import ClientConfig
from postroad.client.subscription import ReceivedMessage
from postroad.errors import PublishRefusedError
from postroad.transport.background import BackgroundLoop, Blocking, iterate, run, wait_for, wait_for_twin


def connect(urls: str | Iterable[str], config: ClientConfig | None = None) -> Client:
    """Return a client to be used with `with`."""
    return Client(urls, config)


class Publisher(Blocking[publisher.Publisher]):
    """See `postroad.client.publisher.Publisher`."""

    publish = wait_for(publisher.Publisher.publish)
    publish_many = wait_for(publisher.Publisher.publish_many)
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
    ack = wait_for(subscription.Subscription.ack)
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

    def __next__(self) -> ReceivedMessage:
        try:
            return self._next()
        except StopAsyncIteration:
            raise StopIteration from None

    _next = wait_for(subscription.Subscription.__anext__)


class Client(Blocking[connection.Client]):
    """See `postroad.client.connection.Client`."""

    durables = wait_for(connection.Client.durables)
    explain = wait_for(connection.Client.explain)
    forget = wait_for(connection.Client.forget)
    pubends = wait_for(connection.Client.pubends)
    read = iterate(connection.Client.read)
    subscribe = wait_for_twin(connection.Client.subscribe, Subscription)
    trace = wait_for(connection.Client.trace)
    trace_many = wait_for(connection.Client.trace_many)

    def __init__(self, urls: str | Iterable[str], config: ClientConfig | None) -> None:
        self.inner = connection.connect(urls, config)

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
