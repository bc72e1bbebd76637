"""Writing batches that may be repeated, as an application sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from postroad.client.publisher import within
from postroad.core.batch.batch import Batch
from postroad.core.session.events import WriterChanged, WriterFailed, WriterSealed
from postroad.core.session.named_writers import Writer as WriterState
from postroad.errors import NotConnectedError, PostroadError, UnfinishedError

if TYPE_CHECKING:
    from postroad.client.connection import Client

CHUNK_ROWS: Final = 8192


class Writer:
    """Made by `Client.writer`: one batch of a named writer, published exactly once however often it is tried."""

    def __init__(self, client: Client, key: int, timeout: float | None) -> None:
        self._client: Final = client
        self._state: Final[WriterState] = client.session.writing.writers[key]
        self._key: Final = key
        self._timeout: Final = timeout
        self._changed: Final = asyncio.Event()
        self._failure: Exception | None = None
        self._last_error: PostroadError | None = None
        self._sealed = False

    async def write(self, columns: Mapping[str, Any], payloads: Any) -> None:
        """Take rows: Arrow arrays (or lists), one per attribute, and the payloads. Waits while too much is under way."""
        count = len(payloads)
        for start in range(0, count, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, count)
            while not self._state.has_room():
                await self._step()
            if self._failure is not None:
                raise self._failure
            part = {name: values[start:stop] for name, values in columns.items()}
            batch = Batch.from_columns(self._state.ids(stop - start), payloads[start:stop], part)
            for piece in within(batch):
                self._client.session.writing.write(self._key, piece, piece.size)
            self._client._pump()

    async def finish(self) -> int:
        """Wait until every row is durable and the batch is sealed; return how many rows it has."""
        self._client.session.writing.seal(self._key)
        self._client._pump()
        while not self._sealed:
            await self._step()
        return self._state.rows

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client._forget_writer(self._key)

    def told(self, event: WriterChanged | WriterSealed | WriterFailed) -> None:
        match event:
            case WriterFailed(_, error) if error.retryable:
                self._last_error = error
                return
            case WriterFailed(_, error):
                self._failure = error
            case WriterSealed():
                self._sealed = True
            case WriterChanged():
                self._last_error = None
        self._changed.set()

    def failed(self, error: Exception) -> None:
        self._failure = error
        self._changed.set()

    async def _step(self) -> None:
        """Wait until something happened; what takes too long is an error, so that the batch is tried again."""
        if self._failure is not None:
            raise self._failure
        self._changed.clear()
        try:
            async with asyncio.timeout(self._timeout):
                await self._changed.wait()
        except TimeoutError:
            raise self._why_nothing_happened() from None
        if self._failure is not None:
            raise self._failure

    def _why_nothing_happened(self) -> PostroadError:
        if self._last_error is not None:
            return self._last_error
        if self._client.broker is None:
            return NotConnectedError(f"no broker could be reached for {self._timeout:g} s")
        return UnfinishedError(f"the broker acknowledged nothing for {self._timeout:g} s")
