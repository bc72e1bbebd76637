"""How many messages wait for a durable subscription: its part of the logs is read by range, without the payloads.

The list of durable subscriptions says how far the slowest position of each is behind, in milliseconds. What matches after that is
counted in every stream. So the number is the most that can wait: in other streams the subscription may be further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from postroad.client.connection import Client
from postroad.core.protocol.packets import DurableEntry, PubendSpan
from postroad.errors import PostroadError
from postroad.types import COUNTER_BITS

COUNTING_S: Final = 3.0  # for all together; what is not counted by then is not known


async def count_waiting(client: Client, entries: Iterable[DurableEntry]) -> dict[str, int]:
    """Return for each durable subscription how many messages wait at most, as far as they could be counted in time."""
    found: dict[str, int] = {}
    try:
        async with asyncio.timeout(COUNTING_S):
            spans = await client.pubends()
            for entry in entries:
                if entry.filter is not None:
                    found[entry.name] = await _count(client, entry, entry.filter, spans)
    except (TimeoutError, PostroadError):
        return found  # a log is released or out of reach, or this client may not read it
    return found


async def _count(client: Client, entry: DurableEntry, filter_: str, spans: dict[int, PubendSpan]) -> int:
    if not entry.behind_ms:
        return 0
    count = 0
    for pubend, span in spans.items():
        lo = max(span.released, span.horizon - (entry.behind_ms + 1 << COUNTER_BITS), 0)
        if lo < span.horizon:
            async for batch in client.read(pubend, lo, span.horizon, filter_, bare=True):
                count += len(batch)
    return count
