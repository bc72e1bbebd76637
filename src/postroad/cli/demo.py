"""`postroad demo`: the tour. It grows with each capability."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

import click
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from postroad.cli.use.trees import draw, draw_explanation
from postroad.client.connection import Client, ClientConfig, connect
from postroad.client.subscription import Subscription
from postroad.console.access import ADDRESS_NAME
from postroad.core.filters.filter import Filter
from postroad.errors import FilterSyntaxError, OverlayError
from postroad.runtime.config import Console as WebConsole
from postroad.runtime.config import Links, Neighbour, NodeConfig, Overlay
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports
from postroad.types import AttributeValue, MessageId

SYMBOLS: Final = ("IBM", "ACME", "KO", "GE", "T", "XOM", "F", "BA")
READERS: Final = (  # name, broker, filter, durable
    ("everything", 4, "", False),
    ("cheap", 3, "price < 80", False),
    ("ibm-or-acme", 4, "symbol IN ('IBM', 'ACME') AND price > 60", True),
    ("halts", 2, "halted OR symbol LIKE 'B%'", True),
)
CONVERGE_S: Final = 60.0
QUOTE_EVERY_S: Final = 0.02
SHOWN_BY: Final = 4  # the broker with the console: one that does not crash
BOOKS: Final = "books.json"


@dataclass(slots=True)
class _Reader:
    """A subscriber that remembers what it got."""

    name: str
    broker: int
    filter: Filter
    durable: bool
    got: list[MessageId] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def follow(self, subscription: Subscription) -> None:
        async for message in subscription:
            self.got.append(message.id)
            if self.durable:
                await subscription.ack()

    async def drain(self, subscription: Subscription) -> None:
        """Follow without remembering, for as long as it lasts."""
        async for _ in subscription:
            if self.durable:
                await subscription.ack()


@dataclass(slots=True)
class _Books:
    """What was published, to compare with what arrived."""

    published: list[tuple[MessageId, dict[str, str | float | bool]]] = field(default_factory=list)

    def expected(self, reader: _Reader) -> list[MessageId]:
        return [message_id for message_id, attributes in self.published if reader.filter.matches(attributes)]


@click.command()
@click.option(
    "--messages", type=click.IntRange(100, 1_000_000), default=12_000, show_default=True, help="Number of messages to publish."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random quotes.")
@click.option("--keep", is_flag=True, help="Go on afterwards, with traffic, until Ctrl-C: for the web console.")
@click.option("--audit/--no-audit", default=True, show_default=True, help="Whether to audit on Spark at the end.")
def demo(messages: int, seed: int, keep: bool, audit: bool) -> None:
    """Demonstrate filters, four brokers, traffic, two crashes, a trace, a check of all deliveries, and an audit.

    Everything runs on this machine, on free ports and in a temporary directory that is removed at the end.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # it stops the brokers, too, as Ctrl-C does
    console = Console()
    console.print(Panel("[bold]Postroad[/bold]: messaging you can audit", expand=False))
    _show_filters(console)
    with tempfile.TemporaryDirectory(prefix="postroad-demo-") as directory:
        brokers = _diamond(Path(directory))
        try:
            asyncio.run(_show_overlay(console, brokers, messages, seed))
            _stop(brokers)
            if audit:
                _show_audit(console, Path(directory))
            if keep:
                _keep_running(console, brokers, seed)
        finally:
            _stop(brokers)


def _stop(brokers: dict[int, BrokerProcess]) -> None:
    for broker in brokers.values():
        if broker.running:
            broker.stop()


def _show_filters(console: Console) -> None:
    console.rule("1. Filters select messages")
    wanted = Filter("price > 100 AND symbol IN ('IBM', 'ACME')")
    quote: dict[str, AttributeValue] = {"symbol": "IBM", "price": 101.5}
    console.print(f"  {wanted!s}\n    matches {quote}: [bold]{wanted.matches(quote)}[/bold]")
    for wider in ("price > 100", "symbol = 'IBM'"):
        console.print(f"    is covered by [cyan]{wider}[/cyan]: [bold]{Filter(wider).covers(wanted)}[/bold]")
    try:
        Filter("price > 100 AND symbol ~ 'IBM'")
    except FilterSyntaxError as error:
        console.print(f"  the position of a mistake is shown:\n    [red]{str(error).replace(chr(10), chr(10) + '    ')}[/red]")


def _has_console() -> bool:
    return all(find_spec(module) is not None for module in ("starlette", "uvicorn"))


def _show_address(console: Console, brokers: dict[int, BrokerProcess]) -> None:
    """Say where to look. A broker writes the address, with the key, before it listens."""
    if not _has_console():
        console.print("  no web console: pip install 'postroad\\[console]'")
        return
    address = (Path(brokers[SHOWN_BY].config.data_dir) / ADDRESS_NAME).read_text(encoding="utf-8").strip()
    console.print(f"  watch it in a browser: [bold]{address}[/bold]", soft_wrap=True, highlight=False)


def _keep_running(console: Console, brokers: dict[int, BrokerProcess], seed: int) -> None:
    """Start the brokers again on their files, and publish until Ctrl-C."""
    console.rule("The overlay goes on, until Ctrl-C")
    for broker in brokers.values():
        broker.start()
    _show_address(console, brokers)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_publish_on(brokers, seed))
    console.print("  stopped")


async def _publish_on(brokers: dict[int, BrokerProcess], seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # quotes, not secrets
    async with _Clients(brokers) as clients:
        readers = [_Reader(name, at, Filter(text), durable) for name, at, text, durable in READERS]
        for reader in readers:
            client = await clients.at(reader.broker)
            subscription = await client.subscribe(reader.filter, name=reader.name if reader.durable else None)
            reader.task = asyncio.create_task(reader.drain(subscription))
        publisher = (await clients.at(1)).publisher()
        for number in itertools.count():
            await publisher.publish(_quote(rng), f"quote {number}".encode())
            await asyncio.sleep(QUOTE_EVERY_S)


def _quote(rng: random.Random) -> dict[str, str | float | bool]:
    return {"symbol": rng.choice(SYMBOLS), "price": round(rng.uniform(20, 160), 2), "halted": rng.random() < 0.01}


def _diamond(directory: Path) -> dict[int, BrokerProcess]:
    """Four brokers: two paths from 1 to 4."""
    *ports, pages = free_ports(5)
    neighbours = {1: (), 2: (1,), 3: (1,), 4: (2, 3)}
    brokers = {}
    for broker, others in neighbours.items():
        config = NodeConfig(
            id=broker,
            data_dir=str(directory / f"broker-{broker}"),
            listen=f"127.0.0.1:{ports[broker - 1]}",
            neighbours=tuple(Neighbour(f"127.0.0.1:{ports[other - 1]}") for other in others),
            links=Links(heartbeat_s=0.3, timeout_s=2.0, retry_s=0.05, retry_s_max=0.5),
            overlay=Overlay(silence_s=0.3),
            console=WebConsole(listen=f"127.0.0.1:{pages}", books=BOOKS)
            if broker == SHOWN_BY and _has_console()
            else WebConsole(),
        )
        brokers[broker] = BrokerProcess(config, directory)
    return brokers


async def _show_overlay(console: Console, brokers: dict[int, BrokerProcess], count: int, seed: int) -> None:
    console.rule("2. Four brokers, one process each")
    for broker in brokers.values():
        await asyncio.to_thread(broker.start)
    _show_address(console, brokers)
    console.print(
        "        2\n      /   \\\n    1       4     publishers at 1, subscribers at 2, 3 and 4\n      \\   /\n        3"
    )
    readers = [_Reader(name, at, Filter(text), durable) for name, at, text, durable in READERS]
    books = _Books()
    async with _Clients(brokers) as clients:
        for reader in readers:
            client = await clients.at(reader.broker)
            subscription = await client.subscribe(reader.filter, name=reader.name if reader.durable else None)
            reader.task = asyncio.create_task(reader.follow(subscription))
            kind = "durable" if reader.durable else "live"
            console.print(f"  {reader.name:12} at broker {reader.broker}, {kind:7}  [cyan]{reader.filter!s}[/cyan]")
        console.rule("3. Traffic, and two crashes")
        await _publish(console, brokers, clients, books, count, seed)
        await _converge(console, readers, books)
        await _show_trace(console, await clients.at(3), readers, books)
        for reader in readers:
            assert reader.task is not None
            reader.task.cancel()
    _show_books(console, readers, books)


class _Clients:
    """One connection per broker, closed together."""

    def __init__(self, brokers: dict[int, BrokerProcess]) -> None:
        self._brokers = brokers
        self._clients: dict[int, Client] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close(flush=False)

    async def at(self, broker: int) -> Client:
        if broker not in self._clients:
            client = connect(self._brokers[broker].url, ClientConfig(retry_s_max=0.3))
            self._clients[broker] = await client.__aenter__()
        return self._clients[broker]


async def _publish(
    console: Console, brokers: dict[int, BrokerProcess], clients: _Clients, books: _Books, count: int, seed: int
) -> None:
    """Publish quotes at broker 1; kill a relay a third of the way, and broker 1 itself at two thirds."""
    rng = random.Random(seed)  # noqa: S311  # quotes, not secrets
    publisher = (await clients.at(1)).publisher()
    columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.completed:>6} messages"), TimeElapsedColumn())
    crashes = {count // 3: 2, 2 * count // 3: 1}
    restarts: list[asyncio.Task[None]] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("publishing quotes", total=count)
        for number in range(count):
            attributes = _quote(rng)
            message_id = await publisher.publish(attributes, f"quote {number}".encode())
            books.published.append((message_id, attributes))
            if number % 50 == 0:
                progress.update(task, completed=number)
                await asyncio.sleep(0.01)
            if number in crashes:
                restarts.append(asyncio.create_task(_crash(progress.console, brokers[crashes[number]])))
        await asyncio.gather(*restarts)
        await publisher.flush()
        progress.update(task, completed=count)
    console.print("  every message is durable: the publisher has received all acknowledgements")


async def _crash(console: Console, broker: BrokerProcess) -> None:
    await asyncio.to_thread(broker.kill)
    console.print(f"  [red]kill -9[/red] broker {broker.config.id}")
    await asyncio.sleep(0.7)
    await asyncio.to_thread(broker.start)
    console.print(f"  [green]broker {broker.config.id} is running again[/green]")


async def _converge(console: Console, readers: list[_Reader], books: _Books) -> None:
    wanted = sum(len(books.expected(reader)) for reader in readers)
    with console.status("  waiting for the last deliveries"):
        async with asyncio.timeout(CONVERGE_S):
            while sum(len(reader.got) for reader in readers) < wanted:  # noqa: ASYNC110  # four counters, for a person to watch
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # anything delivered twice would come now


async def _show_trace(console: Console, client: Client, readers: list[_Reader], books: _Books) -> None:
    """Trace the last message that a durable subscriber got, and explain it to another one."""
    console.rule("4. The path of one message")
    got, other = (next(reader for reader in readers if reader.name == name) for name in ("ibm-or-acme", "halts"))
    message_id = books.expected(got)[-1]
    trace = await client.trace(message_id)
    console.print(f"  [dim]$ postroad trace {message_id}[/dim]")
    console.print(draw(trace))
    console.print(f"  [dim]$ postroad explain {message_id} --subscriber {other.name}[/dim]")
    console.print(draw_explanation(await client.explain(message_id, other.name)))
    if got.name not in {receipt.subscriber for receipt in trace.subscribers}:
        raise OverlayError("a delivery is missing in the trace: please report this with the seed and the number of messages")


def _show_books(console: Console, readers: list[_Reader], books: _Books) -> None:
    console.rule("5. All deliveries, checked")
    table = Table("subscriber", "matching", "delivered", "missing", "twice", "in order")
    balanced = True
    for reader in readers:
        expected = books.expected(reader)
        missing = len(set(expected) - set(reader.got))
        twice = len(reader.got) - len(set(reader.got))
        in_order = reader.got == expected
        balanced = balanced and in_order
        table.add_row(
            reader.name, *(f"{n:,}" for n in (len(expected), len(reader.got), missing, twice)), "yes" if in_order else "NO"
        )
    console.print(table)
    if not balanced:
        raise OverlayError(
            "deliveries are missing, repeated or out of order: please report this with the seed and the number of messages"
        )
    console.print(
        "[bold green]Correct:[/bold green] every matching message was delivered exactly once, in order, despite both crashes."
    )


def _show_audit(console: Console, directory: Path) -> None:
    """Close the books a second time, without the readers' word: from the logs and tracks that the brokers left."""
    console.rule("6. The audit, on Spark, from the brokers' files only")
    if find_spec("pyspark") is None:
        console.print("  skipped: PySpark is not installed (pip install 'postroad\\[spark]')")
        return
    with console.status("  postroad pipeline audit (about twenty seconds)"):
        command = [sys.executable, "-m", "postroad.cli", "pipeline", "audit", "--data", str(directory)]
        command += ["--books", str(directory / f"broker-{SHOWN_BY}" / BOOKS)]
        audit = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
    console.print(audit.stdout.rstrip(), markup=False, highlight=False)
    if audit.returncode != 0:
        raise OverlayError(f"the audit failed: {audit.stderr.strip()[-2000:]}")
