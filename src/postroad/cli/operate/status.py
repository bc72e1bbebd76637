"""`postroad status`: brokers, links, clients, subscriptions, sizes."""

from __future__ import annotations

import asyncio
from typing import Any

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from postroad.cli.operate.lag import count_waiting
from postroad.cli.shared import age, connected, console, json_option, print_json, url_option
from postroad.client.connection import Client
from postroad.core.protocol.packets import DurableEntry
from postroad.core.protocol.status import BrokerReport
from postroad.errors import PostroadError
from postroad.transport.loops import run


@click.command()
@url_option
@json_option
@click.option("--broker", type=click.IntRange(1), help="Only this broker, with its clients and streams.")
def status(urls: tuple[str, ...], as_json: bool, broker: int | None) -> None:
    """Show the brokers of the overlay: links, clients, streams, and how far durable subscriptions are behind.

    The exit code is 1 if a broker did not answer.
    """
    reports, failures, durables, waiting = run(_ask(urls, broker))
    if as_json:
        print_json(_plain(reports, failures, durables, waiting))
    else:
        _show(reports, failures, durables, waiting, details=broker is not None or len(reports) == 1)
    if failures:
        raise SystemExit(1)


async def _ask(
    urls: tuple[str, ...], broker: int | None
) -> tuple[list[BrokerReport], dict[int, str], list[DurableEntry], dict[str, int]]:
    async with connected(urls, name="postroad status") as client:
        wanted = sorted(await client.brokers()) if broker is None else [broker]
        answers = await asyncio.gather(*(_report(client, each) for each in wanted))
        reports = [each for each in answers if isinstance(each, BrokerReport)]
        failures = {number: each for number, each in zip(wanted, answers, strict=True) if isinstance(each, str)}
        durables = [] if broker is not None else await client.durables()
        return reports, failures, durables, await count_waiting(client, durables)


async def _report(client: Client, broker: int) -> BrokerReport | str:
    try:
        return await client.status(broker)
    except PostroadError as error:
        return str(error)


def _plain(
    reports: list[BrokerReport], failures: dict[int, str], durables: list[DurableEntry], waiting: dict[str, int]
) -> dict[str, Any]:
    brokers = [msgspec.structs.asdict(each) for each in reports]
    for each in brokers:
        for name in ("links", "streams", "clients", "subscriptions"):
            each[name] = [msgspec.structs.asdict(row) for row in each[name]]
        for stream in each["streams"]:
            stream |= {"pubend": f"{stream['pubend']:x}", "known": str(stream["known"]), "delivered": str(stream["delivered"])}
    return {
        "brokers": brokers,
        "unreachable": {str(broker): why for broker, why in failures.items()},
        "durable_subscriptions": [durable_json(each, waiting.get(each.name)) for each in durables],
    }


def durable_json(entry: DurableEntry, waiting: int | None) -> dict[str, Any]:
    """Return a durable subscription as plain values; `waiting` is None where the messages could not be counted."""
    return {
        "name": entry.name,
        "home": entry.home,
        "filter": entry.filter,
        "connected": entry.connected,
        "behind_s": None if entry.filter is None else entry.behind_ms / 1000,
        "waiting_max": waiting,
        "shared": entry.shared,
        "key": entry.key,
        "members": entry.members,
    }


def _show(
    reports: list[BrokerReport],
    failures: dict[int, str],
    durables: list[DurableEntry],
    waiting: dict[str, int],
    *,
    details: bool,
) -> None:
    out = console()
    table = Table("broker", "name", "address", "up", "links", "clients", "subscriptions", "log", "backlog", "notices")
    for each in reports:
        links = ", ".join(str(link.broker) for link in each.links)
        log_bytes = each.figures.get("log_bytes")
        backlog = sum(link.backlog_bytes for link in each.links) + sum(one.backlog_bytes for one in each.clients)
        table.add_row(
            str(each.broker),
            escape(each.name),
            each.address,
            age(each.wall_ms - each.started_ms),
            links or "-",
            str(len(each.clients)),
            f"{each.subscription_count:,}",
            "?" if log_bytes is None else _size(log_bytes),
            _size(backlog),
            escape("; ".join(each.notices)) or "-",
        )
    for broker, why in failures.items():
        table.add_row(str(broker), "?", f"did not answer: {escape(why)}", *("?" for _ in range(7)))
    out.print(table)
    if details:
        for each in reports:
            _show_details(each)
    else:
        throttled = [(each, stream) for each in reports for stream in each.streams if stream.is_hosted and stream.rate_limit]
        for each, stream in throttled:
            out.print(
                f"broker {each.broker} holds its publishers to {stream.rate_limit:,.0f} messages/s for "
                f"{age(each.wall_ms - stream.throttled_since_ms)}, because of broker {stream.throttled_by}"
            )
    if durables:
        out.print(durable_table(durables, waiting))


def _show_details(report: BrokerReport) -> None:
    streams = Table("stream", "hosted", "lag", "cache", "subscriptions", "published", "limit")
    for each in report.streams:
        limit = f"{each.rate_limit:,.0f}/s (broker {each.throttled_by})" if each.rate_limit else "-"
        hosted = "yes" if each.is_hosted else "no"
        row = (hosted, age(each.lag_ms), _size(each.cache_bytes), str(each.engaged), f"{each.published_rows:,}", limit)
        streams.add_row(f"{each.pubend:x}", *row)
    clients = Table("client", "publishes", "backlog", "sent", "received")
    for one in report.clients:
        sizes = (_size(one.backlog_bytes), _size(one.sent_bytes), _size(one.received_bytes))
        clients.add_row(escape(one.name), "yes" if one.publishes else "no", *sizes)
    for table in (streams, clients):
        if table.row_count:
            console().print(table)


def durable_table(durables: list[DurableEntry], waiting: dict[str, int]) -> Table:
    """Return the durable subscriptions as a table."""
    table = Table("durable subscription", "home", "connected", "behind", "waiting", "filter")
    for each in durables:
        if each.filter is None:
            table.add_row(escape(each.name), str(each.home), "?", "?", "?", "its home broker cannot be reached")
        else:
            connected_now = "yes" if each.connected else "no"
            if each.shared:
                by = f", by {each.key}" if each.key else ""
                connected_now = f"{each.members} member{'' if each.members == 1 else 's'}{by}"
            shown = escape(each.filter) or "(everything)"
            count = f"{waiting[each.name]:,}" if each.name in waiting else "?"
            table.add_row(escape(each.name), str(each.home), connected_now, age(each.behind_ms), count, shown)
    return table


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
