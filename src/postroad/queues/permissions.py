"""What a client of queues may do: every request passes here before the service sees it, and lists on their way back.

The permissions of an identity are `Rights`: `put`, `take` and `manage`, by names of queues. A binding gets the part of its filter
that the identity may see. Queue clients belong to the identity that registered them: `worker` of the identity `shop` is
`shop/worker`, and nobody else can connect as it. A request that is not listed here is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from postroad.core.filters.filter import Filter
from postroad.core.protocol.rights import EVERYTHING, Rights
from postroad.errors import UnknownBindingError, UnknownClientError, UnknownQueueError
from postroad.queues.limits import check_client_id, check_queue_id
from postroad.runtime.connections.filter_preparation import work_with_pauses
from postroad.storage.queues.base import Queue, QueueStorage
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.session import Ping
from postroad.wire.registry import REGISTRY, Packet

NAMES_REMEMBERED: Final = 10_000


class QueuePermissions:
    """Compares requests with rights. Ids of queues are never used twice, so their names can be remembered."""

    def __init__(self, storage: QueueStorage) -> None:
        self._storage = storage
        self._names: dict[int, str] = {}
        self.parsing: Final = asyncio.Lock()  # one filter at a time, in a thread

    async def permit(self, packet: Packet, rights: Rights) -> Packet:
        """Return the request that may be carried out, or raise."""
        match packet:
            case Ping() | t.GetQueues() | t.GetActiveQueues() | q.GetBindings():
                return packet  # lists show what the client may know, see `shown`
            case t.RegisterClient():
                if not rights.queues:
                    raise rights.denied("use queues")
                return replace(packet, client_name=rights.own_name(packet.client_name))
            case t.IdentifyClient():
                await self._check_client(packet.client_id, rights)
                return packet
            case t.DeleteClient():
                if not rights.admin:
                    await self._check_client(packet.client_id, rights)
                return packet
            case t.CreateQueue():
                rights.use_queue("manage", packet.queue_name)
                await self._use("manage", rights, *_ids(packet.dead_letter_id))
            case q.ConfigureQueue():
                await self._use("manage", rights, packet.queue_id, *_ids(packet.dead_letter_id))
            case t.DeleteQueue():
                await self._use("manage", rights, packet.queue_id)
            case q.BindQueue():
                await self._use("manage", rights, packet.queue_id)
                rights.subscribable(EVERYTHING)  # refused before the filter costs anything
                async with self.parsing:
                    permitted = partial(_permitted_text, rights, packet.filter_text)
                    return replace(packet, filter_text=await asyncio.to_thread(work_with_pauses, permitted))
            case q.UnbindQueue():
                await self._use("manage", rights, await self._count_bound(packet.binding_id))
            case t.GetQueueId():
                if not rights.knows_queue(packet.queue_name):
                    raise rights.denied(f"use queue {packet.queue_name!r}")
            case t.GetQueueName() | q.GetQueueSettings() | q.GetQueueStats():
                if not rights.knows_queue(await self._name_of(packet.queue_id)):
                    raise _unknown(packet.queue_id)
            case t.PutMessage():
                await self._use("put", rights, *packet.queue_ids)
            case q.PutMessages():
                await self._use("put", rights, *dict.fromkeys(message.queue_id for message in packet.messages))
            case t.GetMessages() | t.ReadMessage() | t.ReadResponse() | q.TakeMessages():
                await self._use("take", rights, packet.queue_id)
            case q.DoneMessages() | q.ReleaseMessages() | q.ExtendLeases():
                await self._use("take", rights, *dict.fromkeys(lease.queue_id for lease in packet.leases))
            case _:
                raise rights.denied(f"send {REGISTRY.by_type[type(packet)].name}")
        return packet

    def shown(self, queues: Iterable[Queue], rights: Rights) -> list[Queue]:
        """Return the queues of which an identity may know."""
        return [each for each in queues if rights.knows_queue(each.name)]

    async def may_manage(self, queue_id: int, rights: Rights) -> bool:
        try:
            return rights.may_use_queue("manage", await self._name_of(queue_id))
        except UnknownQueueError:
            return False

    async def _use(self, action: str, rights: Rights, *queue_ids: int) -> None:
        """Refuse an action in one of these queues; a queue that does not exist is left to the storage.

        Ids are sequential: the error must not tell the name of a queue of which this identity may not know.
        """
        if rights.may_use_queue(action, "*"):
            return
        for queue_id in queue_ids:
            try:
                name = await self._name_of(queue_id)
            except UnknownQueueError:
                continue
            if not rights.knows_queue(name):
                raise _unknown(queue_id)
            rights.use_queue(action, name)

    async def _name_of(self, queue_id: int) -> str:
        known = self._names.get(check_queue_id(queue_id))
        if known is None:
            known = self._names[queue_id] = (await self._storage.get_queue_name(queue_id)).name
            while len(self._names) > NAMES_REMEMBERED:
                del self._names[next(iter(self._names))]
        return known

    async def _check_client(self, client_id: int, rights: Rights) -> None:
        """Refuse a client of another identity as if it did not exist."""
        found = await self._storage.identify(check_client_id(client_id))
        if rights.owner and not found.name.startswith(f"{rights.owner}/"):
            raise UnknownClientError(f"no client has the id {client_id}")

    async def _count_bound(self, binding_id: int) -> int:
        for each in await self._storage.bindings():
            if each.binding_id == binding_id:
                return each.queue_id
        raise UnknownBindingError(f"no binding has the id {binding_id}")


def _permitted_text(rights: Rights, text: str) -> str:
    return str(rights.subscribable(Filter(text)))


def _unknown(queue_id: int) -> UnknownQueueError:
    return UnknownQueueError(f"no queue has the id {queue_id}")


def _ids(queue_id: int | None) -> tuple[int, ...]:
    return () if queue_id is None else (queue_id,)
