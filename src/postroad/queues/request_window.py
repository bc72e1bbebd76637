"""The requests under way of one connection: between whatever carries packets and `QueueService.handle`.

A listener keeps one of these for each connection of a queue client, hands it the queue packets that arrive (`receive`), stops
reading while `full`, and tells it when the connection is gone (`lost`). Answers leave through `send` as they are ready; a
waiting take does not hold up a ping. What can no longer be sent is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from postroad.core.protocol.rights import OPEN, Rights
from postroad.queues.answers import AnswerRoom
from postroad.queues.service import QueueService, Session
from postroad.wire.registry import Packet

REQUESTS_UNDER_WAY_MAX: Final = 256
REQUEST_BYTES_MAX: Final = 16 << 20
"""Bytes of requests under way from which on a connection is not read."""

Send = Callable[[Packet, int], bool]
"""Send an answer with its packet id; return False when the connection is gone."""


class RequestWindow:
    """`on_room` is called when the connection may be read again after it was `full`."""

    def __init__(self, service: QueueService, send: Send, on_room: Callable[[], None], rights: Rights = OPEN) -> None:
        self.session: Final = Session(room=AnswerRoom(shared=service.answers), rights=rights)
        self._service = service
        self._send = send
        self._on_room = on_room
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = False
        self.bytes = 0  # of the requests under way

    @property
    def full(self) -> bool:
        return len(self._tasks) >= REQUESTS_UNDER_WAY_MAX or self.bytes >= REQUEST_BYTES_MAX

    def receive(self, packet: Packet, packet_id: int, size: int = 0) -> None:
        self.bytes += size
        task = asyncio.get_running_loop().create_task(self._answer(packet, packet_id, size))
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def set_congested(self, congested: bool) -> None:
        """Hear whether the connection takes its output: while it does not, no messages are read for it."""
        self.session.room.set_congested(congested)

    def lost(self) -> None:
        """Drop all requests: the connection is gone and nobody waits for the answers."""
        self._lost = True
        for task in self._tasks:
            task.cancel()

    async def settle(self, timeout_s: float | None = None) -> None:
        """Wait for the requests under way."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    async def _answer(self, packet: Packet, packet_id: int, size: int) -> None:
        try:
            answer = await self._service.handle(packet, self.session)
        finally:
            self.bytes -= size
        if self._lost or not self._send(answer, packet_id):
            self._service.undelivered(answer, self.session)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._lost and not self.full:
            self._on_room()
