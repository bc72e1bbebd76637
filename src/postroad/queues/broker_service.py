"""The queue service on a broker's port, and the overlay's messages in bound queues.

A binding is fed by a durable subscription of the broker to itself. The cursors in the queue's database decide what is new,
since rows and cursor are written together; the subscription's name only keeps the logs from being released. Of several
brokers on one database the one that has claimed a binding feeds it, and its durable subscription moves there with it. When a
binding ends, so does its durable subscription.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, cast

import msgspec

from postroad.client.connection import Client, connect
from postroad.core.batch.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.rights import Rights
from postroad.queues.feeder import FedBatch, Feeder
from postroad.queues.limits import QueueLimits
from postroad.queues.profile import ProfileLog
from postroad.queues.request_window import RequestWindow
from postroad.queues.server import open_storage
from postroad.queues.service import QueueService, QueueStats
from postroad.runtime.config import NodeConfig
from postroad.runtime.services import Answer, ServiceHost
from postroad.security.credentials import OPEN as NO_CREDENTIALS
from postroad.storage.queues.base import Binding, FeedRow
from postroad.wire.packets.session import Error, Ping, Pong
from postroad.wire.registry import REGISTRY, Packet

QUEUE_METHODS_MAX: Final = 0xFF


def queues_of(config: NodeConfig) -> BrokerQueues | None:
    """Return the queues a broker's configuration asks for."""
    store = config.queues.store
    if not store:
        return None
    below = Path(config.data_dir)
    profile = below / config.queues.profile if config.queues.profile else None
    limits = QueueLimits(
        queues_per_identity_max=config.limits.queues_per_identity_max,
        clients_per_identity_max=config.limits.queue_clients_per_identity_max,
        bindings_per_identity_max=config.limits.bindings_per_identity_max,
    )
    return BrokerQueues(store if store == "memory" or "://" in store else str(below / store), profile, limits)


class BrokerQueues:
    """The queues as a service of a broker."""

    def __init__(self, store: str, profile: Path | None = None, limits: QueueLimits | None = None) -> None:
        self._store = store
        self._limits = limits
        self._profile = profile
        self._stack = AsyncExitStack()
        self._open: dict[_ServiceConnection, None] = {}
        self._service: QueueService
        self._url = ""
        self._credentials = NO_CREDENTIALS

    @property
    def methods(self) -> frozenset[int]:
        common = {Ping, Pong, Error}
        return frozenset(spec.method for spec in REGISTRY if spec.method <= QUEUE_METHODS_MAX and spec.type not in common)

    async def start(self, host: ServiceHost) -> None:
        self._url, self._credentials = host.url, host.credentials
        self._service = QueueService(
            open_storage(self._store),
            check_filter=Filter,
            limits=self._limits,
            profile=None if self._profile is None else ProfileLog(self._profile, "broker"),
        )
        await self._service.start()
        self._stack.push_async_callback(self._service.stop)
        await self._stack.enter_async_context(Feeder(self._service, self._stream, on_unbound=self._forget))

    async def stop(self) -> None:
        for connection in list(self._open):
            connection.lost()
            await connection.window.settle()
        await self._stack.aclose()

    @property
    def service(self) -> QueueService:
        """The running service; there is one after `start`."""
        return self._service

    async def stats(self) -> list[QueueStats]:
        return await self._service.all_stats()

    def open(self, send: Answer, on_room: Callable[[], None], rights: Rights) -> _ServiceConnection:
        connection = _ServiceConnection(self._service, send, on_room, self._open, rights)
        self._open[connection] = None
        return connection

    def _client(self) -> Client:
        """Return a client of this broker, with the broker's own certificate where the port is guarded."""
        context = self._credentials.context
        return connect(self._url) if context is None else connect(self._url, tls=context, token="")

    async def _stream(self, binding: Binding, cursors: Mapping[int, int]) -> AsyncGenerator[FedBatch, None]:
        """Read the overlay for one binding, from its cursors on."""
        async with self._client() as client:
            subscription = await client.subscribe(binding.filter_text, name=_name(binding), positions=dict(cursors) or None)
            async for pubend, batch in subscription.deliveries():
                yield FedBatch(pubend, int(batch.ticks()[-1]), _rows(batch))
                await subscription.ack(wait=False)

    async def _forget(self, binding: Binding) -> None:
        """Let go of the logs that were held for a binding."""
        async with self._client() as client:
            subscription = await client.subscribe(binding.filter_text, name=_name(binding))
            await subscription.close(forget=True)


class _ServiceConnection:
    """One connection's requests, as the runtime sees them."""

    def __init__(
        self,
        service: QueueService,
        send: Answer,
        on_room: Callable[[], None],
        others: dict[_ServiceConnection, None],
        rights: Rights,
    ) -> None:
        self.window: Final = RequestWindow(service, send, on_room, rights)
        self._others = others

    @property
    def full(self) -> bool:
        return self.window.full

    @property
    def identified(self) -> bool:
        return self.window.session.client is not None

    @property
    def bytes(self) -> int:
        return self.window.bytes

    def receive(self, packet: msgspec.Struct, packet_id: int, size: int) -> None:
        self.window.receive(cast("Packet", packet), packet_id, size)

    def set_congested(self, congested: bool) -> None:
        self.window.set_congested(congested)

    def lost(self) -> None:
        self._others.pop(self, None)
        self.window.lost()


def _name(binding: Binding) -> str:
    return f"queue binding {binding.binding_id}"


def _rows(batch: Batch) -> list[FeedRow]:
    encode = msgspec.msgpack.encode
    return [FeedRow(m.tick, bytes(m.id), m.payload, encode(dict(m.attributes)) if m.attributes else None) for m in batch]
