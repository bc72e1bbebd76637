"""A durable subscription that keeps messages for a streaming query: the option `subscription`.

The query reads ranges of ticks, as always. Beside it a durable subscription of the same filter stands at the end of the last
micro-batch that was committed, so its brokers keep what follows, whatever their `keep_s`; `postroad subscriptions` shows it and
how far it is behind. It is connected only for the moment in which it moves. Cursors move forward only, so a commit that comes
late, or twice, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.client.connection import Client
from postroad.spark.live import connected
from postroad.spark.options import ReadOptions


def hold(options: ReadOptions, positions: Mapping[int, int]) -> None:
    """Make brokers keep what follows on these ticks, and let go what lies before; the subscription is made if it is new."""
    assert options.subscription is not None
    with connected(options.urls, options.timeout_s) as (loop, client):
        loop.call(_move(client, options, positions))


async def _move(client: Client, options: ReadOptions, positions: Mapping[int, int]) -> None:
    subscription = await client.subscribe(
        options.filter,
        name=options.subscription,
        positions=positions,
        start="earliest",
        on_gap="skip",
        auto_ack=False,
        timeout=options.timeout_s,
    )
    await subscription.close()
