"""`postroad subscribe`: messages in, JSON lines out."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from postroad.cli.messages import write_line
from postroad.cli.publish import DEFAULT_URL
from postroad.client.connection import connect
from postroad.client.subscription import Subscription
from postroad.core.protocol.packets import pubend_broker
from postroad.errors import GapError
from postroad.transport.loops import run


@click.command()
@click.option(
    "--url",
    "urls",
    multiple=True,
    default=[DEFAULT_URL],
    show_default=True,
    help="URL of a broker; may be repeated to give alternatives.",
)
@click.option(
    "--filter",
    "filter_text",
    help="Filter, such as \"symbol = 'IBM' AND price > 100\".  [the filter of --name if it exists, otherwise all messages]",
)
@click.option("--name", help="Name of a durable subscription: messages are kept for it while no client is connected.")
@click.option("--earliest", is_flag=True, help="Begin with the oldest message in the log, not with the next new one.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=float, help="Stop when no message arrives for this many seconds.")
@click.option(
    "--position-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Continue from the positions in this file, and keep it up to date.",
)
@click.option("--forget", is_flag=True, help="Delete the durable subscription at the end.")
def subscribe(
    urls: tuple[str, ...],
    filter_text: str | None,
    name: str | None,
    earliest: bool,
    count: int | None,
    timeout: float | None,
    position_file: Path | None,
    forget: bool,
) -> None:
    """Write matching messages to standard output, one JSON object per line, until Ctrl-C, --count or --timeout.

    \b
        postroad subscribe --filter "symbol = 'IBM'" --count 10

    A message is acknowledged when its line has been written. Messages that were released before this subscription got them are
    reported on standard error, and the exit code is then 3.
    """  # noqa: D301  # click wants the backspace itself
    gaps = run(
        _subscribe(list(urls), filter_text, name, position_file, earliest=earliest, count=count, timeout_s=timeout, forget=forget)
    )
    if gaps:
        sys.exit(3)


async def _subscribe(
    urls: list[str],
    filter_text: str | None,
    name: str | None,
    position_file: Path | None,
    *,
    earliest: bool,
    count: int | None,
    timeout_s: float | None,
    forget: bool,
) -> int:
    gaps: list[GapError] = []

    def tell(gap: GapError) -> None:
        gaps.append(gap)
        click.echo(f"warning: {gap}", err=True)

    async with connect(urls) as client:
        if filter_text is None and name is not None:
            filter_text = next((each.filter for each in await client.durables() if each.name == name), None)
        subscription = await client.subscribe(
            filter_text or "",
            name=name,
            start="earliest" if earliest else "new",
            position_file=position_file,
            on_gap=tell,
            auto_ack=False,
        )
        brokers = len({pubend_broker(pubend) for pubend in subscription.starts})
        click.echo(f"subscribed ({brokers} broker{'' if brokers == 1 else 's'})", err=True)
        task = asyncio.create_task(_write(subscription, count, timeout_s))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task
        await subscription.close(forget=forget)
    return len(gaps)


async def _write(subscription: Subscription, count: int | None, timeout_s: float | None) -> None:
    """Write messages; acknowledge what was written when nothing more is waiting or a few hundred are."""
    written = 0
    while count is None or written < count:
        try:
            async with asyncio.timeout(timeout_s):
                message = await anext(subscription)
        except (TimeoutError, StopAsyncIteration):
            return
        sys.stdout.buffer.write(write_line(message))
        written += 1
        if written == count or written % 256 == 0 or not subscription.waiting:
            sys.stdout.buffer.flush()
            await subscription.ack()


@click.command()
@click.option(
    "--url",
    "urls",
    multiple=True,
    default=[DEFAULT_URL],
    show_default=True,
    help="URL of a broker; may be repeated to give alternatives.",
)
@click.option("--forget", metavar="NAME", help="Delete this subscription; no more messages are kept for it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per subscription.")
def subscriptions(urls: tuple[str, ...], forget: str | None, as_json: bool) -> None:
    """List the durable subscriptions of the overlay, or delete one.

    `behind` is the time between the newest message that the home broker has seen and the oldest position of the subscription. It
    grows while no client is connected.
    """
    run(_subscriptions(list(urls), forget, as_json=as_json))


async def _subscriptions(urls: list[str], forget: str | None, *, as_json: bool) -> None:
    async with connect(urls) as client:
        if forget is not None:
            await client.forget(forget)
            click.echo(f"deleted {forget}", err=True)
            return
        found = await client.durables()
    if as_json:
        for each in found:
            click.echo(msgspec.json.encode(msgspec.structs.asdict(each)))
        return
    table = Table("name", "home", "connected", "behind", "filter")
    for each in found:
        if each.filter is None:
            table.add_row(escape(each.name), str(each.home), "?", "?", "its home broker cannot be reached")
        else:
            behind = f"{each.behind_ms / 1000:,.1f} s"
            table.add_row(escape(each.name), str(each.home), "yes" if each.connected else "no", behind, escape(each.filter))
    Console().print(table)
