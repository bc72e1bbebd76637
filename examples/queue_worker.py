"""A queue, two workers that compete for its messages, one message that fails twice and ends among the dead letters."""

from __future__ import annotations

import asyncio
import contextlib

from postroad.queues.client import QueueClient
from postroad.queues.server import QueueServer
from postroad.queues.service import QueueService
from postroad.storage.queues.memory import MemoryQueueStorage


async def worker(name: str, port: int, queue_id: int) -> None:
    async with QueueClient.open("127.0.0.1", port, name=name) as client:
        while delivery := await client.take(queue_id, timeout=0.2):
            try:
                async with delivery:  # done at the end of the block, given back if it raises
                    if delivery.payload == b"poison":
                        raise ValueError("cannot do this")  # noqa: TRY301 - work that fails
                    print(f"{name} did {delivery.payload.decode()}")
            except ValueError as error:
                print(f"{name} failed: {error}")


async def main() -> None:
    async with (
        QueueServer(QueueService(MemoryQueueStorage())) as server,
        QueueClient.open("127.0.0.1", server.port, name="boss") as boss,
    ):
        dead = await boss.open_queue("jobs.dead")
        jobs = await boss.open_queue("jobs", max_deliveries=2, dead_letter=dead)
        for job in ("sweep", "paint", "poison", "cook"):
            await boss.put(jobs, job)
        await boss.put(jobs, "put out the fire", priority=10)
        await asyncio.gather(*(worker(name, server.port, jobs.queue_id) for name in ("ann", "bob")))
        print("dead letters:", [m.message.decode() async for m in boss.read_messages(dead)])


with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C
    asyncio.run(main())
