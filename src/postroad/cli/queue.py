"""`postroad queue ...`: queues from the command line.

Each call registers a client of its own and deletes it at the end, unless `--client ID` names an existing one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import click
from rich.console import Console
from rich.table import Table

from postroad.errors import InvalidValueError
from postroad.queues.client import QueueClient
from postroad.queues.profile import read_calls, summarise
from postroad.types import AttributeValue
from postroad.wire.packets.telesto import QueueMessage, ReadMode

ResultT = TypeVar("ResultT")

BROKER: Final = "127.0.0.1:7400"
RETRY_S: Final = 1.0  # somebody waits at the terminal


@dataclass(frozen=True, slots=True)
class _Target:
    broker: str
    client_id: int | None

    def run(self, work: Callable[[QueueClient], Awaitable[ResultT]]) -> ResultT:
        async def main() -> ResultT:
            async with self._connected() as client:
                return await work(client)

        return asyncio.run(main())

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[QueueClient]:
        host, _, port = self.broker.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidValueError(f"the address of a broker has the form host:port, not {self.broker!r}")
        if self.client_id is not None:
            async with QueueClient.identify(host, int(port), client_id=self.client_id, retry_s=RETRY_S) as client:
                yield client
            return
        name = f"command line {secrets.token_hex(8)}"
        async with QueueClient.register(host, int(port), name=name, retry_s=RETRY_S) as client:
            try:
                yield client
            finally:
                await client.delete_client()


@click.group()
@click.option("--broker", default=BROKER, show_default=True, envvar="POSTROAD_BROKER", help="Address of a broker, as host:port.")
@click.option("--client", "client_id", type=int, help="Id of an existing client to use instead of a new one.")
@click.pass_context
def queue(context: click.Context, broker: str, client_id: int | None) -> None:
    """Create, use and inspect queues."""
    context.obj = _Target(broker, client_id)


@queue.command()
@click.argument("name")
@click.option(
    "--lease", type=float, default=30.0, show_default=True, help="Seconds for which a taken message is hidden from other clients."
)
@click.option("--max-deliveries", type=int, default=0, help="Number of deliveries after which a message moves to --dead-letter.")
@click.option("--dead-letter", help="Name of an existing queue for messages that were delivered too often.")
@click.pass_obj
def create(target: _Target, name: str, lease: float, max_deliveries: int, dead_letter: str | None) -> None:
    """Create a queue."""

    async def work(client: QueueClient) -> None:
        dead = None if dead_letter is None else await client.get_queue_by_name(dead_letter)
        created = await client.create_queue(name, lease=lease, max_deliveries=max_deliveries, dead_letter=dead)
        click.echo(f"created queue {name} with id {created.queue_id}")

    target.run(work)


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Delete the queue even if it contains messages.")
@click.pass_obj
def delete(target: _Target, name: str, yes: bool) -> None:
    """Delete a queue and the messages in it."""

    async def work(client: QueueClient) -> None:
        found = await client.get_queue_by_name(name)
        stats = await client.stats(found)
        held = stats.waiting + stats.scheduled + stats.leased
        if held and not yes:
            raise click.ClickException(f"queue {name} contains {held:,} messages; add --yes to delete them too")
        await client.delete_queue(found)
        click.echo(f"deleted queue {name}")

    target.run(work)


@queue.command("list")
@click.option("--active", is_flag=True, help="Only queues with messages for this client.")
@click.pass_obj
def list_queues(target: _Target, active: bool) -> None:
    """List queues."""

    async def work(client: QueueClient) -> None:
        found = await (client.get_active_queues() if active else client.get_queues())
        table = Table("id", "name", "waiting", "leased", "scheduled", "oldest")
        for each in found:
            stats = await client.stats(each)
            counts = (f"{n:,}" for n in (stats.waiting, stats.leased, stats.scheduled))
            table.add_row(str(each.queue_id), each.queue_name, *counts, _age(stats.oldest_age_ms))
        Console().print(table)

    target.run(work)


@queue.command()
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--to", "receiver", type=int, help="Id of the only client that may take the message.")
@click.option(
    "--priority", type=click.IntRange(1, 10), default=5, show_default=True, help="Priority of the message; 10 is the highest."
)
@click.option("--delay", type=float, default=0.0, help="Seconds until the message can be taken.")
@click.option("--ttl", type=float, help="Seconds until the message expires.")
@click.option("--key", help="Idempotency key: repeated puts with the same key store one message.")
@click.pass_obj
def put(
    target: _Target,
    name: str,
    payload: str | None,
    receiver: int | None,
    priority: int,
    delay: float,
    ttl: float | None,
    key: str | None,
) -> None:
    """Put a message; without PAYLOAD, one message per line of standard input."""

    async def work(client: QueueClient) -> None:
        found = await client.get_queue_by_name(name)
        lines = [payload] if payload is not None else (line.rstrip("\n") for line in sys.stdin)
        count = 0
        for line in lines:
            await client.put(found, line, receiver=receiver, priority=priority, delay=delay, ttl=ttl, key=key)
            count += 1
        click.echo(f"put {count:,} message{'' if count == 1 else 's'} into {name}")

    target.run(work)


@queue.command()
@click.argument("name")
@click.option(
    "--count", type=int, default=1, show_default=True, help="Number of messages; 0 for all, until none arrives within --wait."
)
@click.option("--wait", type=float, default=0.0, help="Seconds to wait for each message.")
@click.option("--by", type=click.Choice(["priority", "arrival"]), default="priority", show_default=True)
@click.option("--sender", type=int, help="Take only messages that this client put.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@click.pass_obj
def take(target: _Target, name: str, count: int, wait: float, by: str, sender: int | None, as_json: bool) -> None:
    """Take messages and print them. A printed message is done."""

    async def work(client: QueueClient) -> None:
        found = await client.get_queue_by_name(name)
        taken = 0
        while not count or taken < count:
            delivery = await client.take(found, mode=ReadMode[by.upper()], sender=sender, timeout=wait)
            if delivery is None:
                break
            async with delivery:
                _print(delivery.message, as_json=as_json)
            taken += 1
        if not taken:
            raise click.ClickException(f"no message in {name}")

    target.run(work)


@queue.command()
@click.argument("name")
@click.option("--limit", type=int, default=20, show_default=True, help="Number of messages; 0 for all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@click.pass_obj
def peek(target: _Target, name: str, limit: int, as_json: bool) -> None:
    """Show messages in any state without taking them."""

    async def work(client: QueueClient) -> None:
        shown = 0
        async for message in client.read_messages(await client.get_queue_by_name(name)):
            if limit and shown == limit:
                click.echo("...", err=True)
                break
            _print(message, as_json=as_json, all_fields=True)
            shown += 1

    target.run(work)


@queue.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per method.")
def profile(file: Path, as_json: bool) -> None:
    """Summarise a profiling log: calls, errors, rate and times of each method.

    A broker writes such a log if `profile` is set under `[queues]`; a client does if it has a `ProfileLog`.
    """
    found = summarise(read_calls(file))
    if as_json:
        for each in found:
            click.echo(json.dumps(asdict(each)))
        return
    table = Table("side", "method", "calls", "errors", "per second", "p50 us", "p99 us", "longest us")
    for each in found:
        counts = (f"{n:,}" for n in (each.p50_us, each.p99_us, each.max_us))
        table.add_row(each.side, each.method, f"{each.calls:,}", f"{each.errors:,}", f"{each.per_s:,.1f}", *counts)
    Console().print(table)


@queue.command()
@click.argument("name")
@click.pass_obj
def stats(target: _Target, name: str) -> None:
    """Show depth, age and rates of a queue."""

    async def work(client: QueueClient) -> None:
        found = await client.stats(await client.get_queue_by_name(name))
        table = Table("figure", "value")
        for label, value in (
            ("waiting", f"{found.waiting:,}"),
            ("scheduled", f"{found.scheduled:,}"),
            ("leased", f"{found.leased:,}"),
            ("oldest waiting", _age(found.oldest_age_ms)),
            ("put", f"{found.put_total:,} ({found.put_per_s:,.1f}/s)"),
            ("taken", f"{found.taken_total:,} ({found.taken_per_s:,.1f}/s)"),
            ("done", f"{found.done_total:,} ({found.done_per_s:,.1f}/s)"),
        ):
            table.add_row(label, value)
        Console().print(table)
        click.echo("totals and rates count the calls at this broker since it started")

    target.run(work)


@queue.command()
@click.argument("name")
@click.argument("filter_text", metavar="[FILTER]", required=False)
@click.option(
    "--priority", type=click.IntRange(1, 10), default=5, show_default=True, help="Priority of the messages that the binding puts."
)
@click.option("--remove", "binding_id", type=int, help="Remove the binding with this id.")
@click.pass_obj
def bind(target: _Target, name: str, filter_text: str | None, priority: int, binding_id: int | None) -> None:
    """Put all messages of the overlay that match FILTER into a queue; without FILTER, list its bindings."""

    async def work(client: QueueClient) -> None:
        found = await client.get_queue_by_name(name)
        if binding_id is not None:
            await client.unbind(binding_id)
            click.echo(f"removed binding {binding_id}")
        elif filter_text is None:
            for each in await client.bindings():
                if each.queue_id == found.queue_id:
                    click.echo(f"{each.binding_id}\t{each.priority}\t{each.filter_text}")
        else:
            click.echo(f"bound {name} with binding {await client.bind(found, filter_text, priority=priority)}")

    target.run(work)


def _print(message: QueueMessage, *, as_json: bool, all_fields: bool = False) -> None:
    text = message.message.decode(errors="replace")
    if as_json:
        arrived = datetime.fromtimestamp(message.time_of_arrival_ms / 1000, tz=UTC)
        fields = {
            "id": message.message_id,
            "payload": text,
            "priority": message.priority,
            "sender": message.sender_id,
            "receiver": message.receiver_id,
            "context": message.context,
            "arrived": arrived.isoformat(timespec="milliseconds"),
            "state": message.state.name.lower(),
            "delivery": message.delivery,
            "attributes": {name: _json_value(value) for name, value in message.attributes.items()},
            "key": None if message.key is None else message.key.hex(),
            "origin": message.origin_queue_id,
        }
        click.echo(json.dumps(fields))
    elif all_fields:
        click.echo(f"{message.message_id}\t{message.state.name.lower()}\t{message.priority}\t{text}")
    else:
        click.echo(text)


def _json_value(value: AttributeValue) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _age(age_ms: int | None) -> str:
    return "-" if age_ms is None else f"{age_ms / 1000:,.1f} s"
