"""A broker that clients and neighbours send any packet of the registry, and broken ones, serves others as before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from tests.core.broker.odd_packets import OddPackets
from tests.runtime.raw_client import raw

import postroad
from postroad.core.protocol.packets import pubend_id
from postroad.queues.broker_service import queues_of
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig
from postroad.wire.batches import encode_batch
from postroad.wire.codec import encode
from postroad.wire.packets.session import Error, Goodbye, Hello, Role
from postroad.wire.registry import REGISTRY, Direction

CONNECTIONS = 12  # of each attacker, one after the other
PACKETS = 40  # of each connection
ENDS = (Hello, Goodbye, Error)  # they only close the connection


async def attack(port: int, role: Role, chance: Random) -> None:
    """Connect again and again, and send odd packets until the broker closes the connection."""
    came = Direction.CLIENT_TO_BROKER if role is Role.CLIENT else Direction.BROKER_TO_BROKER
    kinds = [spec.type for spec in REGISTRY if came in spec.direction and spec.type not in ENDS]
    known = {
        "pubend": [pubend_id(1), pubend_id(9)],
        "target": [1],
        "source": [9],
        "origin": [9, 1],
        "publisher": [0, 1, 2],
        "handle": [1],
    }
    odd = OddPackets(chance, [pubend_id(1), 1, 9], ["name"], known)
    for _ in range(CONNECTIONS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.create_task(reader.read())
        writer.write(raw(Hello(1, 1, role, 9 if role is Role.BROKER else 0, "odd", incarnation=chance.randrange(9))))
        try:
            for number in range(PACKETS):
                packet, rows = odd.draw(chance.choice(kinds))
                carries_body = REGISTRY.by_type[type(packet)].carries_body
                body = None if not carries_body else [] if rows is None else encode_batch(rows)
                data = bytearray(b"".join(encode(packet, number, body)))
                if chance.random() < 0.02:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                writer.write(data)
                await asyncio.sleep(0)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
            await asyncio.gather(reading, return_exceptions=True)


def test_no_frame_stops_a_broker_or_its_service(tmp_path: Path) -> None:
    """Four attackers at a time; a good client has each of its messages, and no packet reached a bug."""

    async def scenario() -> None:
        config = NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", log_level="error")
        queues = queues_of(config)
        assert queues is not None
        node = BrokerServer(config, services=[queues])
        await node.start()
        async with postroad.connect(node.url) as client:
            subscription, publisher = await client.subscribe("good = TRUE"), client.publisher()
            roles = (Role.CLIENT, Role.CLIENT, Role.BROKER, Role.BROKER)
            attackers = [asyncio.create_task(attack(node.port, role, Random(n))) for n, role in enumerate(roles)]
            count = 0
            while count < 20 or not all(attacker.done() for attacker in attackers):
                await publisher.publish({"good": True, "n": count})
                async with asyncio.timeout(20):
                    assert (await anext(subscription)).attributes["n"] == count
                count += 1
            await asyncio.gather(*attackers)
        assert node.internal_errors == 0
        assert node.failure is None
        await node.stop()

    asyncio.run(scenario())
