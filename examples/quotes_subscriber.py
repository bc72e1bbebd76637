"""A quotes ticker: shows the quotes that match a filter.

Start it before or after the publisher (examples/quotes_publisher.py), stop it, start it again: under a --name it misses nothing.

    python examples/quotes_subscriber.py --filter "symbol IN ('ACME', 'HOOLI') AND price > 100" --name my-ticker
"""

from __future__ import annotations

import argparse

import postroad


async def subscribe(url: str, filter_text: str, name: str | None, count: int | None) -> None:
    """Print matching quotes, and acknowledge each after it has been printed."""
    async with postroad.connect(url) as client:
        subscription = await client.subscribe(filter_text, name=name)
        print(f"subscribed to: {filter_text or 'everything'}", flush=True)
        seen = 0
        async for message in subscription:
            symbol, price, volume = message["symbol"], float(message["price"]), int(message["volume"])
            print(f"{symbol!s:9} {price:8.2f}  volume {volume:4}  {message.payload.decode()}")
            await subscription.ack()
            seen += 1
            if seen == count:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description="Show quotes that match a filter.")
    parser.add_argument("--url", default="postroad://127.0.0.1:7400", help="the broker (default: %(default)s)")
    parser.add_argument("--filter", default="", help="which quotes (default: all)")
    parser.add_argument("--name", help="make the subscription durable: quotes wait while this program does not run")
    parser.add_argument("--count", type=int, help="stop after this many")
    options = parser.parse_args()
    postroad.run(subscribe(options.url, options.filter, options.name, options.count))


if __name__ == "__main__":
    main()
