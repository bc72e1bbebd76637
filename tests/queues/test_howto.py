"""The programs of the how-to page work, and work again against the same broker."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import postroad
import postroad.testing
from postroad.queues.client import QueueClient
from postroad.queues.sync import SyncQueueClient
from postroad.types import AttributeValue

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "queues.md"


def program(port: int) -> str:
    """Return all snippets of the page as one coroutine; each goes on inside the `async with` of the first."""
    first, *others = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    body = first + "".join(textwrap.indent(snippet, "    ") for snippet in others)
    text = "import asyncio\n\nasync def main():\n" + textwrap.indent(body, "    ")
    return text.replace("7400", str(port))


def test_the_snippets_of_the_how_to_run_twice_against_one_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that exist are no obstacle at the second run; every message is worked on."""
    monkeypatch.chdir(tmp_path)
    with postroad.testing.broker() as url:
        port = urlsplit(url).port
        assert port is not None
        for _ in range(2):
            done: list[object] = []
            names: dict[str, object] = {"work_on": done.append, "order_id": 17}
            exec(program(port), names)
            asyncio.run(names["main"]())  # type: ignore[operator]
            assert b"resize 17.png" in done


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
