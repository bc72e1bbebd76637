"""`postroad subscribe`: messages in, JSON lines out."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import click

from postroad.cli.operate.admission import explain_admission
from postroad.cli.shared import SinceType, connected, url_option
from postroad.cli.use.messages import write_line
from postroad.client.starts import Start
from postroad.client.subscription import Subscription
from postroad.core.protocol.packets import pubend_broker
from postroad.errors import GapError, RedeliveredError
from postroad.transport.loops import run


@click.command()
@url_option
@click.option(
    "--filter",
    "filter_text",
    help="Filter, such as \"symbol = 'IBM' AND price > 100\".  [the filter of --name if it exists, otherwise all messages]",
)
@click.option("--name", help="Name of a durable subscription: messages are kept for it while no client is connected.")
@click.option("--shared", is_flag=True, help="Share the messages of --name with all others that subscribe to it with --shared.")
@click.option("--key", default="", help="With --shared: messages with one value of this attribute come one after the other.")
@click.option("--earliest", is_flag=True, help="Begin with the oldest message in the log, not with the next new one.")
@click.option(
    "--since", type=SinceType(), help="Begin with what was published less than 10m, 2h or 1d ago, or since a date and time."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=float, help="Stop when no message arrives for this many seconds.")
@click.option(
    "--position-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Continue from the positions in this file, and keep it up to date.",
)
@click.option(
    "--admission",
    default="",
    help="Criterion of admission: off, full, or the share of brokers that may refuse, like 20%.  [the broker's]",
)
@click.option(
    "--explain", metavar="FILTER", help="Say whether a subscription with this filter would be admitted, and why not; then end."
)
@click.option("--forget", is_flag=True, help="Delete the durable subscription at the end.")
def subscribe(
    urls: tuple[str, ...],
    filter_text: str | None,
    name: str | None,
    shared: bool,
    key: str,
    earliest: bool,
    since: timedelta | datetime | None,
    count: int | None,
    timeout: float | None,
    position_file: Path | None,
    admission: str,
    explain: str | None,
    forget: bool,
) -> None:
    """Write matching messages to standard output, one JSON object per line, until Ctrl-C, --count or --timeout.

    \b
        postroad subscribe --filter "symbol = 'IBM'" --count 10

    A message is acknowledged when its line has been written. Messages that were released before this subscription got them are
    reported on standard error, and the exit code is then 3.
    """  # noqa: D301  # click wants the backspace itself
    if explain is not None:
        if not run(explain_admission(urls, explain, admission)):
            sys.exit(1)
        return
    if earliest and since is not None:
        raise click.UsageError("give --earliest or --since, not both")
    start: Start = "earliest" if earliest else "new" if since is None else since
    gaps = run(
        _subscribe(
            urls,
            filter_text,
            name,
            position_file,
            start=start,
            count=count,
            timeout_s=timeout,
            admission=admission,
            forget=forget,
            shared=shared,
            key=key,
        )
    )
    if gaps:
        sys.exit(3)


async def _subscribe(
    urls: tuple[str, ...],
    filter_text: str | None,
    name: str | None,
    position_file: Path | None,
    *,
    start: Start,
    count: int | None,
    timeout_s: float | None,
    admission: str,
    forget: bool,
    shared: bool,
    key: str,
) -> int:
    gaps: list[GapError] = []

    def tell(gap: GapError) -> None:
        gaps.append(gap)
        click.echo(f"warning: {gap}", err=True)

    async with connected(urls, name="postroad subscribe") as client:
        if filter_text is None and name is not None:
            filter_text = next((each.filter for each in await client.durables() if each.name == name), None)
        subscription = await client.subscribe(
            filter_text or "",
            name=name,
            start=start,
            position_file=position_file,
            on_gap=tell,
            auto_ack=False,
            admission=admission,
            shared=shared,
            key=key,
        )
        brokers = len({pubend_broker(pubend) for pubend in subscription.starts})
        click.echo(f"subscribed ({brokers} broker{'' if brokers == 1 else 's'})", err=True)
        task = asyncio.create_task(_write(subscription, count, timeout_s))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # uvloop leaves them behind when it is closed
                loop.remove_signal_handler(number)
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
            try:
                await subscription.ack()
            except RedeliveredError as error:
                click.echo(f"warning: {error}", err=True)
