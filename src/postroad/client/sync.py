"""The same names, blocking: a thin face over the asyncio client, which runs in a thread of its own.

    with postroad.sync.connect("postroad://127.0.0.1:7400") as client:
        publisher = client.publisher()
        publisher.publish({"symbol": "IBM", "price": 101.5}, b"...")
        publisher.flush()

Each call is a round trip to that thread (about 50 us); use `publish_many` and `batches()` where rates matter.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Self

import pyarrow as pa

from postroad.client import connection, publisher, subscription
from postroad.client.connection import ClientConfig
from postroad.client.publisher import Columns, MessageIds, Rows
from postroad.client.subscription import OnGap, ReceivedMessage
from postroad.client.tracing import AnyId
from postroad.core.batch.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import DurableEntry, PubendSpan
from postroad.core.session.publishing import Doubt
from postroad.errors import PublishRefusedError
from postroad.tracking.queries.explaining import Explanation
from postroad.tracking.queries.reconstruction import Trace
from postroad.transport.background import BackgroundLoop
from postroad.types import AttributeValue, MessageId


def connect(urls: str | Iterable[str], config: ClientConfig | None = None) -> Client:
    """Return a client to be used with `with`."""
    return Client(urls, config)


class Publisher:
    """See `postroad.client.publisher.Publisher`."""

    def __init__(self, loop: BackgroundLoop, inner: publisher.Publisher) -> None:
        self._loop: Final = loop
        self._inner: Final = inner

    def publish(self, attributes: Mapping[str, AttributeValue], payload: bytes = b"") -> MessageId:
        return self._loop.call(self._inner.publish(attributes, payload))

    def publish_many(
        self, messages: Rows | Columns | pa.RecordBatch | pa.Table, payloads: Sequence[bytes] | pa.Array[Any] | None = None
    ) -> list[MessageId] | MessageIds:
        return self._loop.call(self._inner.publish_many(messages, payloads))

    def flush(self, timeout_s: float | None = None) -> None:
        self._loop.call(self._inner.flush(timeout_s))

    @property
    def outstanding(self) -> int:
        return self._inner.outstanding

    def doubtful(self) -> list[Doubt]:
        async def ask() -> list[Doubt]:
            return self._inner.doubtful()

        return self._loop.call(ask())

    def close(self, *, flush: bool = True, timeout_s: float | None = None) -> None:
        self._loop.call(self._inner.close(flush=flush, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)


class Subscription:
    """See `postroad.client.subscription.Subscription`."""

    def __init__(self, loop: BackgroundLoop, inner: subscription.Subscription) -> None:
        self._loop: Final = loop
        self._inner: Final = inner
        self._batches: AsyncIterator[Batch] | None = None

    @property
    def filter(self) -> str:
        return self._inner.filter

    @property
    def name(self) -> str | None:
        return self._inner.name

    @property
    def starts(self) -> dict[int, int]:
        return dict(self._inner.starts)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            return self._loop.call(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self) -> ReceivedMessage:
        return await self._inner.__anext__()

    def batches(self) -> Iterator[Batch]:
        batches = self._inner.batches()

        async def following() -> Batch | None:
            return await anext(batches, None)

        while (batch := self._loop.call(following())) is not None:
            yield batch

    def ack(self, message: ReceivedMessage | None = None, *, wait: bool = True) -> None:
        self._loop.call(self._inner.ack(message, wait=wait))

    def positions(self) -> dict[int, int]:
        async def ask() -> dict[int, int]:
            return self._inner.positions()

        return self._loop.call(ask())

    def close(self, *, forget: bool = False) -> None:
        self._loop.call(self._inner.close(forget=forget))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """See `postroad.client.connection.Client`."""

    def __init__(self, urls: str | Iterable[str], config: ClientConfig | None) -> None:
        self._inner: Final = connection.connect(urls, config)
        self._loop: BackgroundLoop

    def __enter__(self) -> Self:
        self._loop = BackgroundLoop("postroad-client")
        try:
            self._loop.call(self._inner.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)

    def close(self, *, flush: bool = True) -> None:
        try:
            self._loop.call(self._inner.close(flush=flush))
        finally:
            self._loop.stop()

    @property
    def broker(self) -> int | None:
        return self._inner.broker

    def publisher(self, *, on_refused: Callable[[PublishRefusedError], None] | None = None) -> Publisher:
        async def make() -> publisher.Publisher:
            return self._inner.publisher(on_refused=on_refused)

        return Publisher(self._loop, self._loop.call(make()))

    def subscribe(
        self,
        filter: str | Filter = "",  # noqa: A002  # the word of the whole system
        *,
        name: str | None = None,
        start: Literal["new", "earliest"] = "new",
        positions: Mapping[int, int] | None = None,
        position_file: str | os.PathLike[str] | None = None,
        on_gap: OnGap = "raise",
        auto_ack: bool | None = None,
        timeout_s: float | None = 30.0,
    ) -> Subscription:
        made = self._inner.subscribe(
            filter,
            name=name,
            start=start,
            positions=positions,
            position_file=position_file,
            on_gap=on_gap,
            auto_ack=auto_ack,
            timeout_s=timeout_s,
        )
        return Subscription(self._loop, self._loop.call(made))

    def durables(self, timeout_s: float | None = 30.0) -> list[DurableEntry]:
        return self._loop.call(self._inner.durables(timeout_s))

    def forget(self, name: str, timeout_s: float | None = 30.0) -> None:
        self._loop.call(self._inner.forget(name, timeout_s))

    def pubends(self, timeout_s: float | None = 30.0) -> dict[int, PubendSpan]:
        return self._loop.call(self._inner.pubends(timeout_s))

    def read(
        self,
        pubend: int,
        lo: int,
        hi: int,
        filter: str | Filter = "",  # noqa: A002  # the word of the whole system
        *,
        timeout_s: float | None = 30.0,
        bare: bool = False,
    ) -> Iterator[Batch]:
        batches = self._inner.read(pubend, lo, hi, filter, timeout_s=timeout_s, bare=bare)

        async def following() -> Batch | None:
            return await anext(batches, None)

        while (batch := self._loop.call(following())) is not None:
            yield batch

    def trace(self, message_id: AnyId) -> Trace:
        return self._loop.call(self._inner.trace(message_id))

    def trace_many(self, message_ids: Iterable[AnyId]) -> list[Trace]:
        return self._loop.call(self._inner.trace_many(message_ids))

    def explain(self, message_id: AnyId, subscriber: str) -> Explanation:
        return self._loop.call(self._inner.explain(message_id, subscriber))
