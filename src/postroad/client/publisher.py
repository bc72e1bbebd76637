"""Publishing, as an application sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa

from postroad.client.confirmations import Confirmations
from postroad.client.payloads import MISSING, with_json
from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import DEFAULT_LIMITS
from postroad.core.session.publishing import Doubt, Registration, Throttled
from postroad.errors import ClosedError, InvalidValueError, PublishRefusedError, UnfinishedError
from postroad.types import AttributeValue, MessageId

if TYPE_CHECKING:
    from postroad.client.connection import Client

Columns: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Iterable[tuple[Mapping[str, AttributeValue], bytes]]

NO_ATTRIBUTES: Final[Mapping[str, AttributeValue]] = MappingProxyType({})
REFUSALS_MAX: Final = 1024
CHUNK_ROWS: Final = 4096
TURN_ROWS: Final = 2000  # published in one turn of the event loop; then others have theirs


class Publisher:
    """Publishes a stream of messages without waiting for each. Made by `Client.publisher`.

    One publisher's messages reach every subscriber in the order they were published.

    ```python
    publisher = client.publisher()
    first = await publisher.publish({"symbol": "ACME", "price": 101.5}, b"payload")
    await publisher.publish({"symbol": "ACME", "price": 102.0}, json={"note": "up"})
    await publisher.confirmed(first)  # this one is durable
    await publisher.flush()  # all are
    ```
    """

    def __init__(self, client: Client, key: int, on_refused: Callable[[PublishRefusedError], None] | None) -> None:
        self._client: Final = client
        self._session: Final = client.session
        self._key: Final = key
        self._on_refused = on_refused
        self._refusals: list[PublishRefusedError] = []
        self._failure: Exception | None = None
        self._changed: Final = asyncio.Event()
        self._confirmations: Final = Confirmations(client.session, key)
        self._since_turn = 0

    async def publish(
        self,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
    ) -> MessageId:
        """Publish one message and return its id, which is valid from now on.

        Returns as soon as the message is in the window of those not yet acknowledged. `confirmed` waits until this message is
        durable, `flush` until all are. Text is encoded as UTF-8; `json` is a value to encode instead of a payload.
        When the overlay cannot take more (`throttled`), it waits for credit of the broker.
        """
        if json is not MISSING:
            attributes, payload = with_json(attributes, payload, json)
        elif type(payload) is str:
            payload = payload.encode()
        registration = self._session.registration(self._key) or await self._room()
        message_id = registration.add(attributes, payload, time.monotonic_ns() // 1_000_000)  # type: ignore[arg-type]  # bytes by now; the clock is `Client._clock_ms`
        self._since_turn += 1
        if self._since_turn >= TURN_ROWS:
            self._since_turn = 0
            self._client._pump()
            await asyncio.sleep(0)
        elif self._since_turn == 1:
            self._client._plan_pump(self._end_turn)
        return message_id

    def try_publish(
        self,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        payload: bytes | str = b"",
        *,
        json: object = MISSING,
    ) -> MessageId | None:
        """Publish one message without waiting; None if there is no room for it now, and then it was not published.

        There is no room while no broker is connected, while the window of unacknowledged messages is full, or while `throttled`
        says that the overlay cannot take more.
        """
        self._check()
        if json is not MISSING:
            attributes, payload = with_json(attributes, payload, json)
        elif type(payload) is str:
            payload = payload.encode()
        registration = self._session.registration(self._key)
        self._client._plan_pump()
        return None if registration is None else registration.add(attributes, payload, self._client._clock_ms())  # type: ignore[arg-type]  # bytes by now

    @property
    def throttled(self) -> Throttled | None:
        """Since when, to what rate and because of which broker this publisher is slowed down; None when it is not."""
        return self._session.throttled(self._key)

    def _end_turn(self) -> None:
        self._since_turn = 0

    async def publish_many(
        self, messages: Rows | Columns | pa.RecordBatch | pa.Table, payloads: Sequence[bytes] | pa.Array[Any] | None = None
    ) -> list[MessageId] | MessageIds:
        """Publish many messages: rows of (attributes, payload), or attribute columns with their `payloads`.

        Columns are lists, numpy arrays or Arrow arrays by attribute name, or an Arrow batch or table (a column `payload` may
        stand in it). They are cheap for the client, the broker and every subscriber that reads `batches()`.
        """
        if isinstance(messages, pa.Table | pa.RecordBatch | Mapping):
            columns, values = _columns(messages, payloads)
            return await self._publish_columns(columns, values)
        return [await self.publish(attributes, payload) for attributes, payload in messages]

    async def _publish_columns(self, columns: Mapping[str, Any], payloads: Any) -> MessageIds:
        count = len(payloads)
        ids: list[Any] = []
        stop = 0
        while stop < count:
            registration = await self._room()
            start, stop = stop, min(stop + CHUNK_ROWS, stop + registration.room(), count)
            part = registration.ids_for(stop - start, self._client._clock_ms())
            whole = start == 0 and stop == count
            attributes = columns if whole else {name: values[start:stop] for name, values in columns.items()}
            batch = Batch.from_columns(part, payloads if whole else payloads[start:stop], attributes)
            for piece in within(batch):
                registration.add_batch(piece, piece.size)
            ids.append(part)
            self._client._pump()
        return MessageIds(ids)

    async def confirmed(self, published: MessageId | Iterable[MessageId], *, timeout: float | None = None) -> None:
        """Wait until a message, or each of several, is durable at its broker.

        Raises `PublishRefusedError` when the broker refused one, and `UnfinishedError` after `timeout` seconds: the message may
        still become durable later.
        """
        ids = [published] if isinstance(published, MessageId) else list(published)
        self._client._pump()  # a refusal that has just come is known to the session, and told by this
        self._check()
        futures = [self._confirmations.wait_for(each) for each in ids]
        try:
            async with asyncio.timeout(timeout):
                for future in futures:
                    await future
        except TimeoutError:
            left = sum(not future.done() for future in futures)
            raise UnfinishedError(f"{left} of {len(ids)} messages are not acknowledged after {timeout:g} s") from None
        finally:
            for future in futures:
                future.cancel()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message is durable at its broker. Raises what the broker refused since the last flush."""
        try:
            async with asyncio.timeout(timeout):
                while self._session.outstanding(self._key) and not self._failure:
                    self._client._plan_pump()
                    await self._wait()
        except TimeoutError:
            left = self._session.outstanding(self._key)
            raise UnfinishedError(f"{left} messages are not acknowledged after {timeout:g} s") from None
        self._check()
        self._client._pump()  # a refusal that has just come is known to the session, and told by this
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            raise refusals[0] if len(refusals) == 1 else ExceptionGroup("messages were refused", refusals)

    @property
    def outstanding(self) -> int:
        """Messages not yet known to be durable."""
        return self._session.outstanding(self._key)

    def doubtful(self) -> list[Doubt]:
        """Say which messages were given to a broker that is away: they are sent again when it is back, and only to it."""
        return self._session.doubtful(self._key)

    async def close(self, *, flush: bool = True, timeout: float | None = None) -> None:
        """End the publisher, by default after everything is durable."""
        try:
            if flush:
                await self.flush(timeout)
        finally:
            self._client._forget_publisher(self._key)
            self._fail(self._failure or ClosedError("the publisher was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    # --- the client's calls ----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._changed.set()

    def _settle(self) -> None:
        """Tell who waits for messages that became durable; called when all that was refused has been told."""
        self._confirmations.changed()

    def _take_refusal(self, error: PublishRefusedError) -> None:
        self._confirmations.refused(error)
        if self._on_refused is not None:
            self._on_refused(error)
        elif len(self._refusals) < REFUSALS_MAX:
            self._refusals.append(error)
        self._changed.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._confirmations.failed(error)
        self._changed.set()

    # --- inside ----------------------------------------------------------------------------------------------------------

    async def _wait_for_room(self) -> None:
        self._check()
        self._client._pump()
        self._since_turn = 0
        await self._wait()
        self._check()

    async def _room(self) -> Registration:
        while (registration := self._session.registration(self._key)) is None:
            await self._wait_for_room()
        return registration

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class MessageIds(Sequence[MessageId]):
    """The ids of many messages, made into objects only when looked at. `array()` gives them as 16-byte items."""

    def __init__(self, parts: list[Any]) -> None:
        self._ids = np.concatenate(parts) if parts else np.empty(0, np.dtype((np.void, 16)))

    def array(self) -> Any:
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [MessageId.from_bytes(bytes(each)) for each in self._ids[index]]
        return MessageId.from_bytes(bytes(self._ids[index]))


def _columns(messages: Columns | pa.RecordBatch | pa.Table, payloads: Any) -> tuple[Mapping[str, Any], Any]:
    if isinstance(messages, pa.Table):
        messages = messages.combine_chunks()
    columns = messages if isinstance(messages, Mapping) else {name: messages.column(name) for name in messages.schema.names}
    if payloads is None:
        columns = dict(columns)
        payloads = columns.pop("payload", None)
        if payloads is None:
            if not columns:
                raise InvalidValueError("publish_many needs payloads or at least one column")
            payloads = [b""] * len(next(iter(columns.values())))
    return columns, payloads


def within(batch: Batch) -> list[Batch]:
    """Cut a batch that is too large for a frame."""
    if batch.size <= DEFAULT_LIMITS.bytes or len(batch) == 1:
        return [batch]
    half = len(batch) // 2
    return within(batch.slice(0, half)) + within(batch.slice(half, len(batch)))
