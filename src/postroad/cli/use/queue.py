"""`postroad queue ...`: queues from the command line."""

from __future__ import annotations

import base64
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.table import Table

from postroad.cli.shared import age, connected, console, json_option, print_json, url_option
from postroad.cli.use.publish import read_pair
from postroad.client.queues import ClientQueues, QueueOptions, WorkQueue
from postroad.errors import UnknownQueueError
from postroad.queues.profile import read_calls, summarise
from postroad.transport.loops import run
from postroad.types import AttributeValue
from postroad.wire.packets.telesto import QueueMessage, ReadMode

ResultT = TypeVar("ResultT")

F = TypeVar("F", bound=Callable[..., Any])

CLIENT_NAME: Final = "command line"


def _run(urls: tuple[str, ...], client_name: str | None, work: Callable[[ClientQueues], Awaitable[ResultT]]) -> ResultT:
    """Do some work with the queue methods, as the client of this name."""

    async def main() -> ResultT:
        async with connected(urls, name=client_name or CLIENT_NAME) as client:
            return await work(client.queues)

    return run(main())


@click.group()
def queue() -> None:
    """Create, use and inspect queues."""


def _target(function: F) -> F:
    """Add the options that every command of a queue has."""
    named = click.option("--client", "client_name", help=f"Name of the queue client to act as.  [{CLIENT_NAME}]")
    return url_option(named(function))


@queue.command()
@click.argument("name")
@click.option(
    "--lease", type=float, default=30.0, show_default=True, help="Seconds for which a taken message is hidden from other clients."
)
@click.option("--max-deliveries", type=int, default=0, help="Number of deliveries after which a message moves to --dead-letter.")
@click.option("--dead-letter", help="Name of the queue for messages that were delivered too often.  [NAME.dead]")
@_target
def create(
    urls: tuple[str, ...], client_name: str | None, name: str, lease: float, max_deliveries: int, dead_letter: str | None
) -> None:
    """Create a queue. One that exists with the same settings stays as it is; other settings are an error."""

    async def work(client: ClientQueues) -> None:
        try:
            await client.get_queue_by_name(name)
        except UnknownQueueError:
            done = "created queue"
        else:
            done = "found queue"
        found = await client.declare(name, QueueOptions(lease, max_deliveries, dead_letter))
        click.echo(f"{done} {name} with id {found.queue_id}")

    _run(urls, client_name, work)


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Delete the queue even if it contains messages.")
@_target
def delete(urls: tuple[str, ...], client_name: str | None, name: str, yes: bool) -> None:
    """Delete a queue and the messages in it."""

    async def work(client: ClientQueues) -> None:
        found = await client.get_queue_by_name(name)
        stats = await client.stats(found)
        held = stats.waiting + stats.scheduled + stats.leased
        if held and not yes:
            raise click.ClickException(f"queue {name} contains {held:,} messages; add --yes to delete them too")
        await client.delete_queue(found)
        click.echo(f"deleted queue {name}")

    _run(urls, client_name, work)


@queue.command("list")
@click.option("--active", is_flag=True, help="Only queues with messages for this client.")
@json_option
@_target
def list_queues(urls: tuple[str, ...], client_name: str | None, active: bool, as_json: bool) -> None:
    """List queues."""

    async def work(client: ClientQueues) -> None:
        found = await (client.get_active_queues() if active else client.get_queues())
        table = Table("id", "name", "waiting", "leased", "scheduled", "oldest")
        for each in found:
            stats = await client.stats(each)
            if as_json:
                print_json({"id": str(each.queue_id), "name": each.queue_name, **msgspec.structs.asdict(stats)})
                continue
            counts = (f"{n:,}" for n in (stats.waiting, stats.leased, stats.scheduled))
            table.add_row(str(each.queue_id), each.queue_name, *counts, age(stats.oldest_age_ms))
        if not as_json:
            console().print(table)

    _run(urls, client_name, work)


@queue.command(short_help="Put messages into a queue.")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--to", "receiver", type=int, help="Id of the only client that may take the message.")
@click.option(
    "--priority", type=click.IntRange(1, 10), default=5, show_default=True, help="Priority of the message; 10 is the highest."
)
@click.option("--delay", type=float, default=0.0, help="Seconds until the message can be taken.")
@click.option("--ttl", type=float, help="Seconds until the message expires.")
@click.option("--attribute", "-a", "pairs", multiple=True, metavar="NAME=VALUE", help="Attribute of the messages.")
@click.option("--key", help="Idempotency key: repeated puts with the same key store one message.")
@_target
def put(
    urls: tuple[str, ...],
    client_name: str | None,
    name: str,
    payload: str | None,
    receiver: int | None,
    priority: int,
    delay: float,
    ttl: float | None,
    pairs: tuple[str, ...],
    key: str | None,
) -> None:
    """Put a message; without PAYLOAD, one message per line of standard input. The queue is created if it does not exist."""

    async def work(client: ClientQueues) -> None:
        found = await client.declare(name, QueueOptions())
        lines = [payload] if payload is not None else (line.rstrip("\n") for line in sys.stdin)
        count, attributes = 0, dict(map(read_pair, pairs))
        for line in lines:
            await client.put(
                found, line, attributes=attributes, receiver=receiver, priority=priority, delay=delay, ttl=ttl, key=key
            )
            count += 1
        click.echo(f"put {count:,} message{'' if count == 1 else 's'} into {name}")

    _run(urls, client_name, work)


@queue.command()
@click.argument("name")
@click.option(
    "--count", type=int, default=1, show_default=True, help="Number of messages; 0 for all, until none arrives within --wait."
)
@click.option("--wait", type=float, default=0.0, help="Seconds to wait for each message.")
@click.option("--by", type=click.Choice(["priority", "arrival"]), default="priority", show_default=True)
@click.option("--sender", type=int, help="Take only messages that this client put.")
@json_option
@_target
def take(
    urls: tuple[str, ...], client_name: str | None, name: str, count: int, wait: float, by: str, sender: int | None, as_json: bool
) -> None:
    """Take messages and print them. A printed message is done."""

    async def work(client: ClientQueues) -> None:
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

    _run(urls, client_name, work)


@queue.command()
@click.argument("name")
@click.option("--limit", type=int, default=20, show_default=True, help="Number of messages; 0 for all.")
@json_option
@_target
def peek(urls: tuple[str, ...], client_name: str | None, name: str, limit: int, as_json: bool) -> None:
    """Show messages in any state without taking them."""

    async def work(client: ClientQueues) -> None:
        shown = 0
        async for message in client.read_messages(await client.get_queue_by_name(name)):
            if limit and shown == limit:
                click.echo("...", err=True)
                break
            _print(message, as_json=as_json, all_fields=True)
            shown += 1

    _run(urls, client_name, work)


@queue.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), help="At most this many messages.")
@_target
def redrive(urls: tuple[str, ...], client_name: str | None, name: str, limit: int | None) -> None:
    """Put the dead letters of a queue back into it."""

    async def work(client: ClientQueues) -> None:
        await client.get_queue_by_name(name)
        moved = await WorkQueue(client, name, QueueOptions()).redrive(limit)
        click.echo(f"put {moved:,} message{'' if moved == 1 else 's'} back into {name}")

    _run(urls, client_name, work)


@queue.command(short_help="Summarise a profiling log.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def profile(file: Path, as_json: bool) -> None:
    """Summarise a profiling log: calls, errors, rate and times of each method.

    A broker writes such a log if `profile` is set under `[queues]`; a client does if it has a `ProfileLog`.
    """
    found = summarise(read_calls(file))
    if as_json:
        for each in found:
            print_json(asdict(each))
        return
    table = Table("side", "method", "calls", "errors", "per second", "p50 us", "p99 us", "longest us")
    for each in found:
        counts = (f"{n:,}" for n in (each.p50_us, each.p99_us, each.max_us))
        table.add_row(each.side, each.method, f"{each.calls:,}", f"{each.errors:,}", f"{each.per_s:,.1f}", *counts)
    console().print(table)


@queue.command()
@click.argument("name")
@json_option
@_target
def stats(urls: tuple[str, ...], client_name: str | None, name: str, as_json: bool) -> None:
    """Show depth, age and rates of a queue."""

    async def work(client: ClientQueues) -> None:
        found = await client.stats(await client.get_queue_by_name(name))
        if as_json:
            print_json({"name": name, **msgspec.structs.asdict(found)})
            return
        table = Table("figure", "value")
        for label, value in (
            ("waiting", f"{found.waiting:,}"),
            ("scheduled", f"{found.scheduled:,}"),
            ("leased", f"{found.leased:,}"),
            ("oldest waiting", age(found.oldest_age_ms)),
            ("put", f"{found.put_total:,} ({found.put_per_s:,.1f}/s)"),
            ("taken", f"{found.taken_total:,} ({found.taken_per_s:,.1f}/s)"),
            ("done", f"{found.done_total:,} ({found.done_per_s:,.1f}/s)"),
        ):
            table.add_row(label, value)
        console().print(table)
        click.echo("totals and rates count the calls at this broker since it started")

    _run(urls, client_name, work)


@queue.command(short_help="Put matching messages of the overlay into a queue.")
@click.argument("name")
@click.argument("filter_text", metavar="[FILTER]", required=False)
@click.option(
    "--priority", type=click.IntRange(1, 10), default=5, show_default=True, help="Priority of the messages that the binding puts."
)
@click.option("--remove", "binding_id", type=int, help="Remove the binding with this id.")
@json_option
@_target
def bind(
    urls: tuple[str, ...],
    client_name: str | None,
    name: str,
    filter_text: str | None,
    priority: int,
    binding_id: int | None,
    as_json: bool,
) -> None:
    """Put all messages of the overlay that match FILTER into a queue; without FILTER, list its bindings."""

    async def work(client: ClientQueues) -> None:
        found = await client.get_queue_by_name(name)
        if binding_id is not None:
            await client.unbind(binding_id)
            click.echo(f"removed binding {binding_id}")
        elif filter_text is None:
            for each in await client.bindings():
                if each.queue_id == found.queue_id and as_json:
                    print_json({"id": str(each.binding_id), "priority": each.priority, "filter": each.filter_text})
                elif each.queue_id == found.queue_id:
                    click.echo(f"{each.binding_id}\t{each.priority}\t{each.filter_text}")
        else:
            click.echo(f"bound {name} with binding {await client.bind(found, filter_text, priority=priority)}")

    _run(urls, client_name, work)


def _print(message: QueueMessage, *, as_json: bool, all_fields: bool = False) -> None:
    text = message.message.decode(errors="replace")
    if as_json:
        arrived = datetime.fromtimestamp(message.time_of_arrival_ms / 1000, tz=UTC)
        fields = {
            "id": str(message.message_id),
            "payload": text,
            "priority": message.priority,
            "sender": _text(message.sender_id),
            "receiver": _text(message.receiver_id),
            "context": _text(message.context),
            "arrived": arrived.isoformat(timespec="milliseconds"),
            "state": message.state.name.lower(),
            "delivery": message.delivery,
            "attributes": {name: _json_value(value) for name, value in message.attributes.items()},
            "key": None if message.key is None else message.key.hex(),
            "origin": _text(message.origin_queue_id),
        }
        print_json(fields)
    elif all_fields:
        click.echo(f"{message.message_id}\t{message.state.name.lower()}\t{message.priority}\t{text}")
    else:
        click.echo(text)


def _json_value(value: AttributeValue) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
