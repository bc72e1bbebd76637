"""A quotes ticker: publishes made-up prices for a handful of symbols.

In one terminal:    postroad broker
In another:         python examples/quotes_subscriber.py
In a third:         python examples/quotes_publisher.py
"""

from __future__ import annotations

import argparse
import asyncio
import random

import postroad

SYMBOLS = ["ACME", "GLOBEX", "HOOLI", "INITECH", "UMBRELLA"]


async def publish(url: str, count: int, pause_s: float) -> None:
    """Let prices wander, and publish each change with its symbol and price as attributes."""
    prices = {symbol: random.uniform(50, 150) for symbol in SYMBOLS}
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        for _ in range(count):
            symbol = random.choice(SYMBOLS)
            prices[symbol] = round(prices[symbol] * random.uniform(0.98, 1.02), 2)
            attributes: dict[str, str | float] = {"symbol": symbol, "price": prices[symbol], "volume": random.randrange(1, 1000)}
            message_id = await publisher.publish(attributes, f"{symbol} at {prices[symbol]}".encode())
            print(f"published {message_id}  {symbol:9} {prices[symbol]:8.2f}")
            await asyncio.sleep(pause_s)
        await publisher.flush()  # everything is on the broker's disk now


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish made-up quotes.")
    parser.add_argument("--url", default="postroad://127.0.0.1:7400", help="the broker (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="how many quotes (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two quotes (default: %(default)s)")
    options = parser.parse_args()
    postroad.run(publish(options.url, options.count, options.pause))


if __name__ == "__main__":
    main()
