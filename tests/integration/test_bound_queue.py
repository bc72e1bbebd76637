"""A queue bound to a filter of the overlay gets each matching message once, whatever is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.brokers import QUICK_LINKS, QUICK_OVERLAY, BrokerProcess

import postroad
from postroad.queues.client import QueueClient
from postroad.runtime.config import NodeConfig
from postroad.testing import free_ports

MESSAGES = 900


def test_a_bound_queue_is_fed_exactly_once_through_crashes_of_its_broker(tmp_path: Path) -> None:
    """The broker is killed twice while messages are published; the books of the queue balance."""
    (port,) = free_ports(1)
    config = NodeConfig(
        id=1, data_dir=str(tmp_path / "data"), listen=f"127.0.0.1:{port}", links=QUICK_LINKS, overlay=QUICK_OVERLAY
    )
    broker = BrokerProcess(config, tmp_path)
    broker.start()
    try:
        assert asyncio.run(_scenario(broker, port)) == [f"m{n}" for n in range(MESSAGES) if n % 3]
    finally:
        broker.kill()


async def _scenario(broker: BrokerProcess, port: int) -> list[str]:
    async with QueueClient.register("127.0.0.1", port, name="maker") as maker:
        queue = await maker.create_queue("orders")
        await maker.bind(queue.queue_id, "n > 0 AND wanted")
    await asyncio.sleep(3.0)  # the binding is looked up every two seconds; it begins with what is published then
    async with postroad.connect(broker.url) as client:
        publisher = client.publisher()
        for number in range(MESSAGES):
            await publisher.publish({"n": number + 1, "wanted": number % 3 != 0}, f"m{number}".encode())
            if number in (MESSAGES // 3, 2 * MESSAGES // 3):
                await asyncio.to_thread(_crash, broker)
        await publisher.flush()
    return await _drain(port, queue.queue_id)


def _crash(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


async def _drain(port: int, queue: int) -> list[str]:
    """Take until nothing has come for a while; a message that came twice would be here twice."""
    taken: list[str] = []
    async with QueueClient.register("127.0.0.1", port, name="worker") as worker:
        while True:
            leases = await worker.take_batch(queue, 100, timeout=4.0)
            if not leases:
                return sorted(taken, key=lambda text: int(text[1:]))
            for lease in leases:
                taken.append(bytes(lease.message.message).decode())
                await lease.done()
