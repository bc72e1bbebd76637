"""Shared subscriptions, as an application sees them: a `Subscription` whose messages are this member's part of the stream.

Everything of `Subscription` holds but for the order and the acknowledgements. Messages come in any order, and each is
acknowledged by itself. What the application was given over a connection that is lost now belongs to others: its `ack()` raises
`RedeliveredError`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

from postroad.client.acknowledging import GivenBatch
from postroad.client.subscription import STORE_S, Message, OnGap, Subscription, _Arrived
from postroad.core.batch.batch import Batch
from postroad.errors import InvalidValueError, RedeliveredError

if TYPE_CHECKING:
    from postroad.client.connection import Client

log = logging.getLogger("postroad.client")

PREFETCH: Final = 32
PREFETCH_MAX: Final = 4096
_Place = tuple[int, int]  # (pubend, tick)


class _MemberBatch(GivenBatch):
    """A batch that was given over one connection; it belongs to this member as long as that is there."""

    __slots__ = ("connection",)

    def __init__(self, subscription: SharedSubscription, pubend: int, count: int, last: int, connection: int) -> None:
        super().__init__(subscription, pubend, count, last)
        self.connection = connection


class SharedSubscription(Subscription):
    """This client's part of a shared subscription. Made by `Client.subscribe` with `shared=True`.

    ```python
    async with await client.subscribe("kind = 'order'", name="billing", shared=True, key="account") as orders:
        async for order in orders:
            print(order["account"], order.json())
            await order.ack()  # from here on nobody gets it again
            break
    ```

    Each message is given to one member, and to another one if that member is lost before it has acknowledged it. With a `key`,
    messages with the same value of that attribute are worked on one after the other.
    """

    def __init__(
        self, client: Client, key: int, filter_text: str, *, name: str, ordered_by: str, on_gap: OnGap, receive_bytes: int
    ) -> None:
        super().__init__(
            client,
            key,
            filter_text,
            name=name,
            position_file=None,
            on_gap=on_gap,
            auto_ack=False,
            receive_bytes=receive_bytes,
        )
        self.key: Final = ordered_by
        self._connections = 0  # how often the membership began
        self._unacknowledged: dict[_Place, None] = {}  # given to the application over this connection
        self._storing: dict[_Place, asyncio.Future[None]] = {}  # acknowledged, and not known to be stored

    # --- receiving ---

    async def __anext__(self) -> Message:
        while True:
            message = await super().__anext__()
            given = message._given
            if isinstance(given, _MemberBatch) and given.connection == self._connections:
                self._unacknowledged[message.pubend, message.tick] = None
                return message

    async def deliveries(self) -> AsyncIterator[tuple[int, Batch]]:
        """Yield batches, each with the pubend whose stream its messages are from; `ack()` acknowledges all that was given."""
        async for pubend, batch in super().deliveries():
            self._unacknowledged.update({(pubend, int(tick)): None for tick in batch.ticks()})
            yield pubend, batch

    def _find_given(self, arrived: _Arrived) -> GivenBatch:
        return _MemberBatch(self, arrived.pubend, len(arrived.batch), arrived.batch.last_tick, self._connections)

    # --- acknowledging ---

    async def ack(self, message: Message | None = None, *, wait: bool = True) -> None:
        """Acknowledge everything that was given so far and is not acknowledged, or one message.

        When this returns, that is on the disk of the home broker, and nobody is given it again. Raises `RedeliveredError` for
        what belongs to others by now. With `wait=False` it does not wait, and nobody hears of that.
        """
        if message is not None:
            await self._ack_one(message, message._given, message._row, wait=wait)
        else:
            await self._finish(list(self._unacknowledged), wait=wait)

    async def _ack_one(self, message: Message, given: GivenBatch, row: int, *, wait: bool) -> None:  # noqa: ARG002
        place = message.pubend, message.tick
        assert isinstance(given, _MemberBatch)
        if given.connection != self._connections:
            raise _belongs_to_others([place])
        if place in self._unacknowledged or place in self._storing:
            await self._finish([place], wait=wait)

    async def _finish(self, places: Iterable[_Place], *, wait: bool) -> None:
        if self._failure is not None:
            raise self._failure
        waiting = [self._storing.get(place) or self._begin_to_store(place) for place in places]
        self._client._plan_pump()
        if wait and waiting:
            await asyncio.wait(waiting)
            errors = [error for each in waiting if (error := each.exception()) is not None]
            if errors:
                raise errors[0]

    def _begin_to_store(self, place: _Place) -> asyncio.Future[None]:
        self._unacknowledged.pop(place, None)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sharing = self._client.session.sharing
        membership = sharing.memberships.get(self._key)
        if membership is None or not membership.active:
            future.set_exception(_belongs_to_others([place]))
            future.exception()  # nobody may be waiting
            return future
        self._storing[place] = future
        pubend, tick = place
        sharing.acknowledge(self._key, {pubend: [tick]})
        return future

    async def _store_acknowledged(self) -> None:
        """Wait a moment until what was acknowledged without waiting is stored."""
        waiting = list(self._storing.values())
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=STORE_S)
        if late:
            log.warning("%d acknowledgements of %r may not be stored: no answer in %g s", len(late), self.name, STORE_S)

    def positions(self) -> dict[int, int]:
        """A shared subscription has no positions: its home broker knows what the members have done."""
        raise InvalidValueError("a shared subscription has no positions: its home broker knows what its members have done")

    # --- the end ---

    async def close(self, *, forget: bool = False) -> None:
        """Leave. What this member was given and did not acknowledge goes to others. `forget` deletes the subscription.

        With `forget`, an error says that no broker confirmed the deletion, or that the subscription has other members.
        """
        await self._store_acknowledged()
        await super().close(forget=forget)

    # --- the client's calls ---

    def _take_finished(self, ticks: dict[int, list[int]], refused: dict[int, list[int]]) -> None:
        for place in _places(ticks):
            future = self._storing.pop(place, None)
            if future is not None and not future.done():
                future.set_result(None)
        for place in _places(refused):
            self._fail_one(place, _belongs_to_others([place]))

    def _take_lost(self) -> None:
        """Drop what was given over the connection that is lost: others get it."""
        self._connections += 1
        self._unacknowledged.clear()
        self._waiting = type(self._waiting)(item for item in self._waiting if not isinstance(item, _Arrived))
        self._current = iter(())
        self._current_arrived = self._last = None
        self._buffered = 0
        if not self._open:
            self._open = True
            self._client._flow(self._key, is_open=True)
        for place in list(self._storing):
            self._fail_one(place, _belongs_to_others([place]))

    def _fail_one(self, place: _Place, error: Exception) -> None:
        future = self._storing.pop(place, None)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # nobody may be waiting

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        self._fail_all(error)

    def _take_end(self, error: Exception | None = None) -> None:
        super()._take_end(error)
        self._fail_all(RedeliveredError("the subscription ended before the acknowledgement was stored"))

    def _fail_all(self, error: Exception) -> None:
        for place in list(self._storing):
            self._fail_one(place, error)


def _places(ticks: dict[int, list[int]]) -> list[_Place]:
    return [(pubend, tick) for pubend, each in ticks.items() for tick in each]


def _belongs_to_others(places: list[_Place]) -> RedeliveredError:
    pubend, tick = places[0]
    return RedeliveredError(
        f"the message at tick {tick} of {pubend:x} is not acknowledged: its connection was lost, so it goes to others"
    )


def check_prefetch(prefetch: int) -> int:
    """Return how many messages a member may hold, or raise `InvalidValueError`."""
    if not 0 <= prefetch <= PREFETCH_MAX:
        raise InvalidValueError(f"prefetch is from 0 to {PREFETCH_MAX:,}, not {prefetch}")
    return prefetch
