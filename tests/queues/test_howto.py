"""What the how-to page says of bound queues; its programs run in tests/test_snippets.py."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import postroad
import postroad.testing
from postroad.queues.client import QueueClient
from postroad.queues.sync import SyncQueueClient
from postroad.types import AttributeValue


def test_a_bound_queue_hands_over_decoded_attributes() -> None:
    """Each kind of value arrives as it was published, taken or only looked at; a put message has none."""
    attributes: dict[str, AttributeValue] = {"type": "order", "total": 120.5, "count": 3, "express": True, "stamp": b"\0\xff"}
    with postroad.testing.broker() as url:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        with SyncQueueClient.open(parts.hostname, parts.port, name="ann") as client:
            orders = client.open_queue("orders")
            client.bind(orders, "type = 'order'")

            async def publish_until_fed() -> None:
                async with (
                    postroad.connect(url) as overlay,
                    QueueClient.open(str(parts.hostname), int(parts.port or 0), name="bob") as bob,
                    asyncio.timeout(30),
                ):
                    publisher = overlay.publisher()
                    delivery = None
                    while delivery is None:  # a binding begins with what is published after it was taken up
                        await publisher.publish(attributes, b"payload")
                        delivery = await bob.take(orders, timeout=0.2)
                    assert delivery.attributes == attributes
                    shown = [m.attributes async for m in bob.read_messages(orders)]
                    assert shown[0] == attributes

            asyncio.run(publish_until_fed())
            jobs = client.open_queue("jobs")
            client.put(jobs, b"x")
            taken = client.take(jobs)
            assert taken is not None
            assert taken.attributes == {}
