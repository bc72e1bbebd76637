"""What the console shows of queues, and does with them: peek, put, redrive, purge.

It works on the broker's own queue service, so no connection and no client of the queue service is needed. Redriving gives each
copy a key made from the message it replaces, so that a redrive that is interrupted and repeated puts nothing twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from postroad.console.messages import show_attributes, show_payload
from postroad.core.protocol.rights import Rights
from postroad.errors import InvalidValueError
from postroad.queues.broker_service import BrokerQueues
from postroad.queues.service import QueueStats
from postroad.storage.queues.base import Lease, Message, NewMessage, Queue, TakeRequest
from postroad.wire.packets.telesto import ClientMode

ACTIONS: Final = ("put", "take", "manage")
PEEK_MAX: Final = 50
PEEK_BYTES_MAX: Final = 1 << 20
MOVED_AT_ONCE: Final = 100
MOVED_MAX: Final = 10_000  # messages in one redrive or purge; the page says how many are left
LEASE_MS: Final = 30_000
CONSOLE_CLIENT: Final = "console"
CONSOLE_KEY: Final = b"postroad console"


class QueueActions:
    """The queues of this broker, as the console uses them."""

    def __init__(self, queues: BrokerQueues) -> None:
        self._queues = queues
        self._client_id: int | None = None

    async def describe(self, rights: Rights) -> list[dict[str, Any]]:
        """Return every queue that the viewer may do something with."""
        stats = await self._queues.stats()
        names = {each.queue.queue_id: each.queue.name for each in stats}
        bindings = await self._queues.service.storage.bindings()
        described = []
        for each in stats:
            allowed = [action for action in ACTIONS if any(grant.covers(action, each.queue.name) for grant in rights.queues)]
            if allowed:
                bound = [binding.filter_text for binding in bindings if binding.queue_id == each.queue.queue_id]
                described.append({**_describe(each, names), "bound": bound, "allowed": allowed})
        return described

    async def peek(self, rights: Rights, name: str, after: int) -> dict[str, Any]:
        """Return the first messages of a queue without taking them."""
        rights.use_queue("take", name)
        queue = await self._queue(name)
        storage = self._queues.service.storage
        found = await storage.get_messages_from_queue(queue.queue_id, after=after, limit=PEEK_MAX, bytes_max=PEEK_BYTES_MAX)
        sees_all = rights.may_use_queue("manage", name)
        counts = await storage.depth_by_priority(queue.queue_id) if sees_all else {}
        return {
            "queue": name,
            "messages": [_show(each) for each in found if sees_all or each.receiver_id is None],
            "more": len(found) == PEEK_MAX,
            "by_priority": sorted(counts.items(), reverse=True),
        }

    async def put(self, rights: Rights, name: str, payload: bytes, priority: int) -> dict[str, Any]:
        rights.use_queue("put", name)
        if not 1 <= priority <= 10:
            raise InvalidValueError(f"a priority is a number from 1 to 10, not {priority}")
        queue = await self._queue(name)
        await self._put(queue, [NewMessage(queue.queue_id, await self._client(), payload, priority=priority)])
        return {"put": 1}

    async def redrive(self, rights: Rights, name: str) -> dict[str, Any]:
        """Move what is in the dead-letter queue of a queue back into it."""
        rights.use_queue("manage", name)
        queue = await self._queue(name)
        dead_id = queue.settings.dead_letter_id
        if dead_id is None:
            raise InvalidValueError(f"queue {name!r} has no dead-letter queue")
        sender = await self._client()

        async def put_back(messages: list[Message]) -> list[Message]:
            ours = [each for each in messages if each.origin_queue_id == queue.queue_id]
            await self._put(queue, [_again(queue.queue_id, dead_id, sender, each) for each in ours])
            return ours

        return {"moved": await self._empty(dead_id, put_back)}

    async def purge(self, rights: Rights, name: str) -> dict[str, Any]:
        """Delete the messages that wait in a queue."""
        rights.use_queue("manage", name)
        queue = await self._queue(name)

        async def drop(messages: list[Message]) -> list[Message]:
            return messages

        return {"deleted": await self._empty(queue.queue_id, drop)}

    async def _empty(self, queue_id: int, handle: Callable[[list[Message]], Awaitable[list[Message]]]) -> int:
        """Take what waits in a queue, piece by piece, and delete what was handled. The rest is given back at the end."""
        storage, client = self._queues.service.storage, await self._client()
        moved = 0
        others: list[Message] = []
        while moved + len(others) < MOVED_MAX:
            messages = await storage.take(TakeRequest(queue_id, client, limit=MOVED_AT_ONCE, lease_ms=LEASE_MS))
            if not messages:
                break
            handled = await handle(messages)
            await storage.done([_lease(each, client) for each in handled])
            moved += len(handled)
            others += [each for each in messages if each not in handled]
        if others:
            await storage.release([_lease(each, client) for each in others], undelivered=True)
        return moved

    async def _put(self, queue: Queue, rows: list[NewMessage]) -> None:
        await self._queues.service.storage.put(rows)
        self._queues.service.fed(queue.queue_id, len(rows))

    async def _queue(self, name: str) -> Queue:
        return await self._queues.service.storage.get_queue_id(name)

    async def _client(self) -> int:
        if self._client_id is None:
            client = await self._queues.service.storage.request_id(CONSOLE_CLIENT, ClientMode.READ_AND_PUT, CONSOLE_KEY)
            self._client_id = client.client_id
        return self._client_id


def _lease(message: Message, client_id: int) -> Lease:
    return Lease(message.queue_id, message.message_id, message.delivery, client_id)


def _again(queue_id: int, dead_id: int, sender: int, message: Message) -> NewMessage:
    """Return a dead letter as a new message of the queue that it came from."""
    return NewMessage(
        queue_id,
        sender,
        message.message,
        receiver_id=message.receiver_id,
        context=message.context,
        priority=message.priority,
        key=b"redrive %d %d" % (dead_id, message.message_id),
        attributes=message.packed_attributes,
    )


def _describe(stats: QueueStats, names: dict[int, str]) -> dict[str, Any]:
    queue, depth = stats.queue, stats.depth
    dead_id = queue.settings.dead_letter_id
    return {
        "name": queue.name,
        "waiting": depth.waiting,
        "scheduled": depth.scheduled,
        "leased": depth.leased,
        "oldest_ms": depth.oldest_age_ms,
        "put_per_s": round(stats.put_per_s, 2),
        "taken_per_s": round(stats.taken_per_s, 2),
        "done_per_s": round(stats.done_per_s, 2),
        "dead_letters": None if dead_id is None else names.get(dead_id, f"queue {dead_id}"),
    }


def _show(message: Message) -> dict[str, Any]:
    attributes = msgspec.msgpack.decode(message.packed_attributes) if message.packed_attributes else {}
    return {
        "id": str(message.message_id),
        "priority": message.priority,
        "deliveries": message.delivery,
        "attributes": show_attributes(attributes if isinstance(attributes, dict) else {}),
        "payload": show_payload(message.message),
    }
