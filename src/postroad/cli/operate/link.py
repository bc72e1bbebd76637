"""`postroad link`: change links between brokers while they run."""

from __future__ import annotations

import click

from postroad.cli.shared import connected, url_option
from postroad.transport.loops import run


@click.group()
def link() -> None:
    """Change links between brokers while they run."""


@link.command(short_help="Limit how many bytes per second a link carries.")
@click.argument("broker", type=click.IntRange(1))
@click.argument("bytes_per_s", type=click.IntRange(0))
@url_option
def limit(broker: int, bytes_per_s: int, urls: tuple[str, ...]) -> None:
    """Limit what the broker at --url sends to its neighbour BROKER to BYTES_PER_S; 0 ends the limit.

    The limit lasts until the broker restarts; `bandwidth_bytes_per_s` in its configuration is permanent. Publishers slow down
    if the limit is below what they send and `[congestion]` has a rule.
    """
    run(_limit(urls, broker, bytes_per_s))
    text = f"at most {bytes_per_s:,} bytes per second go" if bytes_per_s else "any number of bytes may go"
    click.echo(f"{text} to broker {broker} from now on", err=True)


async def _limit(urls: tuple[str, ...], broker: int, bytes_per_s: int) -> None:
    async with connected(urls, name="postroad link") as client:
        await client.limit_link(broker, bytes_per_s)
