"""The live tail: a subscription of the console for one page, thinned to what a person can read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from postroad.client.connection import Client
from postroad.client.subscription import Subscription
from postroad.console.messages import show_message
from postroad.core.filters.filter import Filter
from postroad.core.protocol.rights import Rights

EVERY_S: Final = 0.25
SHOWN_PER_S: Final = 40
KEPT: Final = 100  # messages that wait for the next turn; older ones are counted and left out


async def tail(client: Client, rights: Rights, text: str) -> AsyncIterator[dict[str, Any]]:
    """Yield several times a second the newest messages that match, with the number of those left out."""
    wanted = rights.subscribable(Filter(text))
    subscription = await client.subscribe(wanted, on_gap="skip")
    newest: deque[dict[str, Any]] = deque(maxlen=KEPT)
    counts = [0, 0]  # received, sent
    reading = asyncio.create_task(_read(subscription, newest, counts))
    try:
        yield {"messages": [], "received": 0, "left_out": 0}
        per_turn = max(1, int(SHOWN_PER_S * EVERY_S))
        while not reading.done():
            await asyncio.sleep(EVERY_S)
            shown = list(newest)[-per_turn:]
            newest.clear()
            counts[1] += len(shown)
            yield {"messages": shown, "received": counts[0], "left_out": counts[0] - counts[1], "at_ms": int(time.time() * 1000)}
        await reading
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reading
        await subscription.close()


async def _read(subscription: Subscription, newest: deque[dict[str, Any]], counts: list[int]) -> None:
    async for _, batch in subscription.deliveries():
        counts[0] += len(batch)
        for row in range(max(0, len(batch) - KEPT), len(batch)):
            message = batch.message(row)
            newest.append(show_message(message.id, message.attributes, message.payload))
