"""The queue client for code without asyncio: the same names, blocking.

One thread runs the loop; each method waits there for the method of the same name.

    with SyncQueueClient.open("127.0.0.1", 7400, name="worker") as client:
        jobs = client.open_queue("jobs")
        client.put(jobs, b"work")
        with client.take(jobs, timeout=5) as delivery:
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from postroad.client import sync
from postroad.client.telesto import Delivery
from postroad.queues.client import QueueClient
from postroad.transport.background import BackgroundLoop, Blocking, iterate, wait_for, wait_for_twin

P = ParamSpec("P")


def _to_twins(loop: BackgroundLoop, deliveries: list[Delivery]) -> list[sync.Delivery]:
    return [sync.Delivery(loop, delivery) for delivery in deliveries]


def _to_twin(loop: BackgroundLoop, delivery: Delivery | None) -> sync.Delivery | None:
    return None if delivery is None else sync.Delivery(loop, delivery)


def _connect(make: Callable[P, QueueClient]) -> classmethod[Any, P, SyncQueueClient]:
    """Offer a way to make a client, which is connected at once."""

    @wraps(make)
    def connect(cls: type[SyncQueueClient], /, *args: P.args, **kwargs: P.kwargs) -> SyncQueueClient:
        async def make_and_connect() -> QueueClient:
            return await make(*args, **kwargs).connect()

        loop = BackgroundLoop("postroad-queue-client")
        try:
            return cls(loop, loop.call(make_and_connect()))
        except BaseException:
            loop.stop()
            raise

    return classmethod(connect)


class SyncQueueClient(Blocking[QueueClient]):
    """See `QueueClient`."""

    open = _connect(QueueClient.open)
    register = _connect(QueueClient.register)
    identify = _connect(QueueClient.identify)

    bind = wait_for(QueueClient.bind)
    bindings = wait_for(QueueClient.bindings)
    configure_queue = wait_for(QueueClient.configure_queue)
    create_queue = wait_for(QueueClient.create_queue)
    delete_client = wait_for(QueueClient.delete_client)
    delete_queue = wait_for(QueueClient.delete_queue)
    get_active_queues = wait_for(QueueClient.get_active_queues)
    get_queue_by_id = wait_for(QueueClient.get_queue_by_id)
    get_queue_by_name = wait_for(QueueClient.get_queue_by_name)
    get_queues = wait_for(QueueClient.get_queues)
    open_queue = wait_for(QueueClient.open_queue)
    ping = wait_for(QueueClient.ping)
    put = wait_for(QueueClient.put)
    put_batch = wait_for(QueueClient.put_batch)
    put_to_many = wait_for(QueueClient.put_to_many)
    read = wait_for(QueueClient.read)
    read_messages = iterate(QueueClient.read_messages)
    request = wait_for(QueueClient.request)
    stats = wait_for(QueueClient.stats)
    take = wait_for_twin(QueueClient.take, _to_twin)
    take_batch = wait_for_twin(QueueClient.take_batch, _to_twins)
    unbind = wait_for(QueueClient.unbind)

    @property
    def client_id(self) -> int:
        return self.inner.client_id

    @property
    def name(self) -> str:
        return self.inner.name

    def done(self, deliveries: Sequence[sync.Delivery]) -> None:
        self.loop.call(self.inner.done([each.inner for each in deliveries]))

    def release(self, deliveries: Sequence[sync.Delivery], *, delay: float = 0.0) -> None:
        self.loop.call(self.inner.release([each.inner for each in deliveries], delay=delay))

    def extend(self, deliveries: Sequence[sync.Delivery], lease: float) -> None:
        self.loop.call(self.inner.extend([each.inner for each in deliveries], lease))

    def close(self) -> None:
        try:
            self.loop.call(self.inner.close())
        finally:
            self.loop.stop()

    def __exit__(self, *_: object) -> None:
        self.close()
