"""A client of the queues alone, with a connection of its own: for programs that speak only the methods of the Telesto report.

    async with QueueClient.open("127.0.0.1", 7400, name="worker") as client:
        jobs = await client.open_queue("jobs")
        await client.put(jobs, b"work")

It also talks to `python -m postroad.queues.server`, which has no overlay. Everything else uses `postroad.connect`, whose
`client.queue` and `client.queues` share the connection of the client. Calls are repeated after a lost connection, at the next
address in turn, for `retry_s` seconds; then the typed error is raised.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final, Self, TypeVar

from postroad.client.telesto import QueueMethods, retried
from postroad.errors import ConnectionLostError, PostroadError
from postroad.queues.connection import Connection
from postroad.queues.profile import ProfileLog
from postroad.security.credentials import OPEN, Credentials
from postroad.wire.packets import telesto as t
from postroad.wire.packets.telesto import ClientMode
from postroad.wire.registry import Packet

PacketT = TypeVar("PacketT", bound=Packet)

RETRY_S: Final = 10.0

Address = tuple[str, int]


class QueueClient(QueueMethods):
    """Made by `open` (the client of a name), `register` (a new one) or `identify` (by id). Use as an async context manager.

    async with QueueClient.open("127.0.0.1", 7400, name="worker") as client:
        jobs = await client.open_queue("jobs")
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
        credentials: Credentials = OPEN,
    ) -> None:
        """With a `profile`, each call is noted there (`queues/profile.py`); closing it is left to who opened it.

        `credentials` (`postroad.security.credentials`) say who the client is, and which brokers it trusts.
        """
        super().__init__()
        self._credentials = credentials
        self._profile = profile
        self._addresses = list(addresses)
        self._retry_s = retry_s
        self._connection: Connection | None = None
        self._sending = asyncio.Lock()  # requests leave in the order of the calls, also while a connection is opened or full
        self._place = 0
        self._closed = False
        self._new: t.RegisterClient | None = None
        self.client_id = 0
        self.name = ""
        self.mode = ClientMode.READ_AND_PUT

    # setup

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        *,
        name: str,
        mode: ClientMode = ClientMode.READ_AND_PUT,
        others: Sequence[Address] = (),
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
        credentials: Credentials = OPEN,
    ) -> Self:
        """Connect as the client of this name; it is registered when it is new, with `mode`. A known one keeps its mode.

        `others` are brokers to go to when this one is lost.
        """
        client = cls([(host, port), *others], retry_s=retry_s, profile=profile, credentials=credentials)
        client._new = t.RegisterClient(name, mode, existing=True)
        return client

    @classmethod
    def register(
        cls,
        host: str,
        port: int,
        *,
        name: str,
        mode: ClientMode = ClientMode.READ_AND_PUT,
        others: Sequence[Address] = (),
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
        credentials: Credentials = OPEN,
    ) -> Self:
        """Connect as a new client, on entering the context or with `connect`; raise `NameTakenError` when the name is known.

        The registration has a key, so it is repeated safely when its answer is lost.
        """
        client = cls([(host, port), *others], retry_s=retry_s, profile=profile, credentials=credentials)
        client._new = t.RegisterClient(name, mode, key=secrets.token_bytes(16))
        return client

    @classmethod
    def identify(
        cls,
        host: str,
        port: int,
        *,
        client_id: int,
        others: Sequence[Address] = (),
        retry_s: float = RETRY_S,
        profile: ProfileLog | None = None,
        credentials: Credentials = OPEN,
    ) -> Self:
        """Connect as an existing client."""
        client = cls([(host, port), *others], retry_s=retry_s, profile=profile, credentials=credentials)
        client.client_id = client_id
        return client

    async def connect(self) -> Self:
        """Connect; what may pass (no broker there yet, its database away) is tried again for `retry_s` seconds."""

        async def attempt() -> Self:
            async with self._sending:
                await self._ensure_connected()
            return self

        return await retried(attempt, seconds=self._retry_s, closed=lambda: self._closed)

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # below

    async def _call(self, packet: Packet, expected: type[PacketT], *, safe: bool = False) -> PacketT:
        async def attempt() -> PacketT:
            async with self._sending:
                connection = await self._ensure_connected()
                answer = await connection.send(packet, expected)
            return await answer

        if self._profile is None:
            return await retried(attempt, seconds=self._retry_s, safe=safe, closed=lambda: self._closed)
        begun, outcome = time.perf_counter(), "ok"
        try:
            return await retried(attempt, seconds=self._retry_s, safe=safe, closed=lambda: self._closed)
        except BaseException as error:
            outcome = str(error.code) if isinstance(error, PostroadError) else type(error).__name__
            raise
        finally:
            self._profile.note(type(packet).__name__, self.client_id, time.perf_counter() - begun, outcome)

    async def _ensure_connected(self) -> Connection:
        if self._closed:
            raise ConnectionLostError("this client was closed")
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self._connection = await self._open()
        return self._connection

    async def _open(self) -> Connection:
        """Open a connection to the first address that answers, beginning with the last that did."""
        for _ in self._addresses[1:]:
            try:
                return await self._open_at(self._addresses[self._place])
            except ConnectionLostError:
                self._place = (self._place + 1) % len(self._addresses)
        return await self._open_at(self._addresses[self._place])

    async def _open_at(self, address: Address) -> Connection:
        connection = await Connection.open(*address, credentials=self._credentials)
        try:
            await self._introduce(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _introduce(self, connection: Connection) -> None:
        if self._new is not None:
            self.client_id = (await connection.call(self._new, t.RegisterClientResponse)).client_id
            self.name, self.mode, new, self._new = self._new.client_name, self._new.mode, self._new, None
            if not new.existing:
                return
        if self.client_id:
            found = await connection.call(t.IdentifyClient(self.client_id), t.IdentifyClientResponse)
            self.name, self.mode = found.client_name, found.mode
