"""`postroad subscriptions`: list, show and delete durable subscriptions."""

from __future__ import annotations

import click

from postroad.cli.operate.lag import count_waiting
from postroad.cli.operate.status import durable_json, durable_table
from postroad.cli.shared import connected, console, json_option, print_json, url_option
from postroad.core.protocol.packets import DurableEntry
from postroad.errors import UnknownDurableError
from postroad.transport.loops import run


@click.group(invoke_without_command=True)
@url_option
@json_option
@click.pass_context
def subscriptions(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """List, show or delete durable subscriptions; without a command, list them.

    `behind` is the time between the newest message that the home broker has seen and the oldest position of the subscription. It
    grows while no client is connected. `waiting` is the number of matching messages since then, the most that can wait for it.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_all, urls=urls, as_json=as_json)


@subscriptions.command("list")
@url_option
@json_option
def list_all(urls: tuple[str, ...], as_json: bool) -> None:
    """List the durable subscriptions of the overlay."""
    found, waiting = run(_durables(urls))
    if as_json:
        for each in found:
            print_json(durable_json(each, waiting.get(each.name)))
    else:
        console().print(durable_table(found, waiting))


@subscriptions.command()
@click.argument("name")
@url_option
@json_option
def show(name: str, urls: tuple[str, ...], as_json: bool) -> None:
    """Show one durable subscription."""
    (found,), waiting = run(_durables(urls, name))
    shown = durable_json(found, waiting.get(name))
    if as_json:
        print_json(shown)
    else:
        for label, value in shown.items():
            click.echo(f"{label:11} {value}")


@subscriptions.command()
@click.argument("name")
@url_option
def forget(name: str, urls: tuple[str, ...]) -> None:
    """Delete a durable subscription: no more messages are kept for it."""
    run(_forget(urls, name))
    click.echo(f"deleted {name}", err=True)


async def _durables(urls: tuple[str, ...], name: str | None = None) -> tuple[list[DurableEntry], dict[str, int]]:
    """Return all durable subscriptions, or that of a name, and how many messages wait for each at most."""
    async with connected(urls, name="postroad subscriptions") as client:
        found = [each for each in await client.durables() if name in (None, each.name)]
        if name is not None and not found:
            raise UnknownDurableError(f"no durable subscription is named {name!r}")
        return found, await count_waiting(client, found)


async def _forget(urls: tuple[str, ...], name: str) -> None:
    async with connected(urls, name="postroad subscriptions") as client:
        await client.forget(name)
