"""Reading the past without a subscription, as an application sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import DurableEntry, ListPubends, PubendSpan
from postroad.core.session.events import PubendsListed, RangeFailed, RangePiece
from postroad.errors import NotConnectedError, PostroadError, UnfinishedError

if TYPE_CHECKING:
    from postroad.client.connection import Client


class Request:
    """One range or list on its way. `next` gives the events told of it."""

    def __init__(self, client: Client, key: int) -> None:
        self.key: Final = key
        self._client: Final = client
        self._events: deque[PubendsListed | RangePiece | RangeFailed] = deque()
        self._changed: Final = asyncio.Event()
        self._failure: Exception | None = None

    def told(self, event: PubendsListed | RangePiece | RangeFailed) -> None:
        self._events.append(event)
        self._changed.set()

    def failed(self, error: Exception) -> None:
        self._failure = error
        self._changed.set()

    async def next(self, timeout: float | None) -> PubendsListed | RangePiece:
        """Wait for the next piece; what a broker refused for the time being is raised only if nothing better comes in time."""
        last: PostroadError | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    while self._events:
                        event = self._events.popleft()
                        if not isinstance(event, RangeFailed):
                            return event
                        if not event.error.retryable:
                            raise event.error
                        last = event.error
                    if self._failure is not None:
                        raise self._failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self._why_nothing_came(last, timeout) from None

    def _why_nothing_came(self, last: PostroadError | None, timeout: float | None) -> PostroadError:
        if last is not None:
            return last
        if self._client.broker is None:
            return NotConnectedError(f"no broker could be reached for {timeout:g} s")
        return UnfinishedError(f"received nothing for {timeout:g} s")

    def end(self) -> None:
        self._client._forget_request(self.key)


async def read_pubends(client: Client, timeout: float | None) -> tuple[dict[int, PubendSpan], list[int]]:
    """Return the spans of the pubends within reach, and the pubends that are not."""
    listed = await _list(client, ListPubends(), timeout)
    return {span.pubend: span for span in sorted(listed.spans, key=lambda span: span.pubend)}, list(listed.unreachable)


async def read_durables(client: Client, timeout: float | None) -> list[DurableEntry]:
    """Return the durable subscriptions of the overlay, by name."""
    found: list[DurableEntry] = []
    more = True
    while more:
        page = await _list(client, ListPubends(durables=True, after=found[-1].name if found else ""), timeout)
        found += page.durables
        more = page.more and bool(page.durables)
    return found


async def _list(client: Client, listing: ListPubends, timeout: float | None) -> PubendsListed:
    request = client._open_request(client.session.list_pubends(listing))
    try:
        listed = await request.next(timeout)
    finally:
        request.end()
    assert isinstance(listed, PubendsListed)
    return listed


async def read_range(
    client: Client, pubend: int, lo: int, hi: int, filter_text: str, *, timeout: float | None, bare: bool
) -> AsyncIterator[Batch]:
    """Yield the matching messages of (lo, hi]. The generator ends when all of it was told."""
    if hi <= lo:
        return
    request = client._open_request(client.session.read(pubend, lo, hi, filter_text, bare=bare))
    try:
        reached = lo
        while reached < hi:
            piece = await request.next(timeout)
            assert isinstance(piece, RangePiece)
            reached = piece.hi
            client.session.taken(request.key)
            client._plan_pump()
            if piece.batch is not None:
                yield piece.batch
    finally:
        request.end()
