"""The queue client for code without asyncio: the same names, blocking.

A thin facade: one thread runs the loop, each method waits for its coroutine there.

    with SyncQueueClient.open("127.0.0.1", 7400, name="worker") as client:
        jobs = client.open_queue("jobs")
        client.put(jobs, b"work")
        with client.take(jobs, timeout=5) as delivery:
            ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from postroad.queues.client import RETRY_S, Address, Delivery, QueueClient, QueueRef
from postroad.types import AttributeValue
from postroad.wire.packets import queues as q
from postroad.wire.packets.telesto import ClientMode, Queue, QueueMessage, ReadMode

ResultT = TypeVar("ResultT")


class SyncDelivery:
    """A leased message. As a context manager: done when the block ends, released when it raises."""

    __slots__ = ("_run", "delivery")

    def __init__(self, run: _Run, delivery: Delivery) -> None:
        self._run = run
        self.delivery: Final = delivery

    @property
    def message(self) -> QueueMessage:
        return self.delivery.message

    @property
    def payload(self) -> bytes:
        return self.delivery.payload

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        return self.delivery.attributes

    def done(self) -> None:
        self._run(self.delivery.done())

    def release(self, *, delay: float = 0.0) -> None:
        self._run(self.delivery.release(delay=delay))

    def extend(self, lease: float) -> None:
        self._run(self.delivery.extend(lease))

    def reply(self, payload: bytes | str, *, priority: int = 5) -> None:
        self._run(self.delivery.reply(payload, priority=priority))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self.delivery.__aexit__(kind, error, trace))


class _Run:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postroad-queue-client", daemon=True)
        self._thread.start()

    def __call__(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncQueueClient:
    """See `QueueClient`."""

    def __init__(self, make: Callable[[], QueueClient]) -> None:
        self._run = _Run()
        try:
            self._client = self._run(_made(make))
        except BaseException:
            self._run.stop()
            raise

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
    ) -> Self:
        return cls(lambda: QueueClient.open(host, port, name=name, mode=mode, others=others, retry_s=retry_s))

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
    ) -> Self:
        return cls(lambda: QueueClient.register(host, port, name=name, mode=mode, others=others, retry_s=retry_s))

    @classmethod
    def identify(cls, host: str, port: int, *, client_id: int, others: Sequence[Address] = (), retry_s: float = RETRY_S) -> Self:
        return cls(lambda: QueueClient.identify(host, port, client_id=client_id, others=others, retry_s=retry_s))

    @property
    def client_id(self) -> int:
        return self._client.client_id

    @property
    def name(self) -> str:
        return self._client.name

    def close(self) -> None:
        self._run(self._client.close())
        self._run.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ping(self) -> float:
        return self._run(self._client.ping())

    def delete_client(self, client_id: int | None = None) -> None:
        self._run(self._client.delete_client(client_id))

    def create_queue(
        self, name: str, *, lease: float | None = None, max_deliveries: int = 0, dead_letter: QueueRef | None = None
    ) -> Queue:
        return self._run(self._client.create_queue(name, lease=lease, max_deliveries=max_deliveries, dead_letter=dead_letter))

    def open_queue(
        self, name: str, *, lease: float | None = None, max_deliveries: int = 0, dead_letter: QueueRef | None = None
    ) -> Queue:
        return self._run(self._client.open_queue(name, lease=lease, max_deliveries=max_deliveries, dead_letter=dead_letter))

    def configure_queue(
        self, queue: QueueRef, *, lease: float = 30.0, max_deliveries: int = 0, dead_letter: QueueRef | None = None
    ) -> None:
        self._run(self._client.configure_queue(queue, lease=lease, max_deliveries=max_deliveries, dead_letter=dead_letter))

    def delete_queue(self, queue: QueueRef) -> None:
        self._run(self._client.delete_queue(queue))

    def get_queue_by_name(self, name: str) -> Queue:
        return self._run(self._client.get_queue_by_name(name))

    def get_queue_by_id(self, queue_id: int) -> Queue:
        return self._run(self._client.get_queue_by_id(queue_id))

    def get_queues(self) -> list[Queue]:
        return self._run(self._client.get_queues())

    def get_active_queues(self) -> list[Queue]:
        return self._run(self._client.get_active_queues())

    def read_messages(self, queue: QueueRef) -> Iterator[QueueMessage]:
        pages = self._client.read_messages(queue)
        while (message := self._run(_next(pages))) is not None:
            yield message

    def stats(self, queue: QueueRef) -> q.GetQueueStatsResponse:
        return self._run(self._client.stats(queue))

    def put(
        self,
        queue: QueueRef,
        payload: bytes | str,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 5,
        delay: float = 0.0,
        ttl: float | None = None,
        key: bytes | str | None = None,
    ) -> int:
        work = self._client.put(
            queue, payload, receiver=receiver, context=context, priority=priority, delay=delay, ttl=ttl, key=key
        )
        return self._run(work)

    def put_batch(self, messages: Sequence[q.NewMessage]) -> list[int]:
        return self._run(self._client.put_batch(messages))

    def put_to_many(
        self,
        queues: Iterable[QueueRef],
        payload: bytes | str,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = 5,
    ) -> set[int]:
        return self._run(self._client.put_to_many(queues, payload, receiver=receiver, context=context, priority=priority))

    def request(
        self, queue: QueueRef, payload: bytes | str, *, receiver: int | None = None, priority: int = 5, timeout: float = 30.0
    ) -> QueueMessage:
        return self._run(self._client.request(queue, payload, receiver=receiver, priority=priority, timeout=timeout))

    def take(
        self,
        queue: QueueRef,
        *,
        mode: ReadMode = ReadMode.PRIORITY,
        sender: int | None = None,
        timeout: float = 0.0,
        lease: float | None = None,
    ) -> SyncDelivery | None:
        taken = self._run(self._client.take(queue, mode=mode, sender=sender, timeout=timeout, lease=lease))
        return None if taken is None else SyncDelivery(self._run, taken)

    def take_batch(
        self,
        queue: QueueRef,
        limit: int,
        *,
        mode: ReadMode = ReadMode.PRIORITY,
        sender: int | None = None,
        timeout: float = 0.0,
        lease: float | None = None,
    ) -> list[SyncDelivery]:
        taken = self._run(self._client.take_batch(queue, limit, mode=mode, sender=sender, timeout=timeout, lease=lease))
        return [SyncDelivery(self._run, delivery) for delivery in taken]

    def read(
        self, queue: QueueRef, *, mode: ReadMode = ReadMode.PRIORITY, sender: int | None = None, timeout: float = 0.0
    ) -> QueueMessage | None:
        return self._run(self._client.read(queue, mode=mode, sender=sender, timeout=timeout))

    def done(self, deliveries: Sequence[SyncDelivery]) -> None:
        self._run(self._client.done([d.delivery for d in deliveries]))

    def release(self, deliveries: Sequence[SyncDelivery], *, delay: float = 0.0) -> None:
        self._run(self._client.release([d.delivery for d in deliveries], delay=delay))

    def extend(self, deliveries: Sequence[SyncDelivery], lease: float) -> None:
        self._run(self._client.extend([d.delivery for d in deliveries], lease))

    def bind(self, queue: QueueRef, filter_text: str, *, priority: int = 5) -> int:
        return self._run(self._client.bind(queue, filter_text, priority=priority))

    def unbind(self, binding_id: int) -> None:
        self._run(self._client.unbind(binding_id))

    def bindings(self) -> tuple[q.BoundFilter, ...]:
        return self._run(self._client.bindings())


async def _made(make: Callable[[], QueueClient]) -> QueueClient:
    return await make().connect()


async def _next(pages: Any) -> QueueMessage | None:
    message: QueueMessage | None = await anext(pages, None)
    return message
