"""Requests to the services of a broker, over the client's main link: each is answered by the packet with its id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from postroad.client.link import Link
from postroad.errors import ConnectionLostError, PostroadError, QueueBusyError, WireError
from postroad.wire.registry import Packet

if TYPE_CHECKING:
    from postroad.client.connection import Client

PacketT = TypeVar("PacketT", bound=Packet)

CALLS_MAX: Final = 10_000
"""Requests under way; beyond them a call is refused."""
UNSENT_BYTES_MAX: Final = 16 << 20
"""Bytes that the network has not taken; beyond them a call waits."""
UNSENT_PAUSE_S: Final = 0.005


class ServiceCalls:
    """The requests of one client."""

    def __init__(self, client: Client) -> None:
        self._client: Final = client
        self._waiting: dict[int, asyncio.Future[msgspec.Struct]] = {}  # by packet id, of the present link

    async def send(self, link: Link, packet: Packet, expected: type[PacketT]) -> Awaitable[PacketT]:
        """Send a request as soon as there is room, and return what waits for its answer."""
        if len(self._waiting) >= CALLS_MAX:
            raise QueueBusyError(f"{CALLS_MAX:,} requests are in progress on this connection")
        while link.channel.outbox.held > UNSENT_BYTES_MAX and not link.channel.closing:  # noqa: ASYNC110  # rare, see the limit
            await asyncio.sleep(UNSENT_PAUSE_S)
        packet_id = self._client.session.next_packet()
        if not link.channel.send(packet, packet_id, control=False):
            raise ConnectionLostError("the connection was lost")
        future = self._waiting[packet_id] = asyncio.get_running_loop().create_future()
        return self._answer(packet_id, future, expected)

    async def _answer(self, packet_id: int, future: asyncio.Future[msgspec.Struct], expected: type[PacketT]) -> PacketT:
        try:
            answer = await future
        finally:
            self._waiting.pop(packet_id, None)
        if not isinstance(answer, expected):
            raise WireError(f"{type(answer).__name__} was received, {expected.__name__} was expected")
        return answer

    def answered(self, link: Link, packet: msgspec.Struct, packet_id: int) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        future = self._waiting.get(packet_id)
        if future is not None and not future.done() and link.broker == self._client.broker:
            future.set_result(packet)

    def refused(self, link: Link, error: PostroadError, packet_id: int) -> bool:
        """Take the refusal of a request; return whether it was one of ours."""
        future = self._waiting.get(packet_id)
        if future is None or link.broker != self._client.broker:
            return False
        if not future.done():
            future.set_exception(error)
        return True

    def lost(self, link: Link) -> None:
        """Fail what was sent over a link that is gone."""
        self.failed(ConnectionLostError(f"the connection to broker {link.broker} was lost"))

    def failed(self, error: Exception) -> None:
        """Fail everything."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may have given up
