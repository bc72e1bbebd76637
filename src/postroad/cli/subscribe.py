"""`postroad subscribe`: messages in, JSON lines out."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from postroad.cli.messages import write_line
from postroad.cli.publish import DEFAULT_URL
from postroad.client.connection import connect
from postroad.client.subscription import Subscription
from postroad.errors import GapError
from postroad.transport.loops import run


@click.command()
@click.option("--url", "urls", multiple=True, default=[DEFAULT_URL], show_default=True, help="A broker; repeat for more to try.")
@click.option(
    "--filter", "filter_text", default="", help="Which messages: for example \"symbol = 'IBM' AND price > 100\".  [all]"
)
@click.option("--name", help="Make the subscription durable under this name: messages wait while nobody is connected.")
@click.option("--earliest", is_flag=True, help="Begin with the oldest message still held, not with the next one.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=float, help="Stop when no message came for this many seconds.")
@click.option(
    "--position-file", type=click.Path(path_type=Path, dir_okay=False), help="Go on where this file says; keep it current."
)
@click.option("--forget", is_flag=True, help="Delete the durable subscription at the end.")
def subscribe(
    urls: tuple[str, ...],
    filter_text: str,
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
    filter_text: str,
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
        subscription = await client.subscribe(
            filter_text,
            name=name,
            start="earliest" if earliest else "new",
            position_file=position_file,
            on_gap=tell,
            auto_ack=False,
        )
        click.echo(f"subscribed at {len(subscription.starts)} pubends", err=True)
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
