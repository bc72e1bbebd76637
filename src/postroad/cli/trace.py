"""`postroad trace` and `postroad explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console

from postroad.cli.publish import DEFAULT_URL
from postroad.cli.trees import draw, draw_explanation, explanation_json, trace_json
from postroad.client.connection import ClientConfig, connect
from postroad.tracking.queries.explaining import Explanation
from postroad.tracking.queries.reconstruction import Trace
from postroad.transport.loops import run
from postroad.types import MessageId

_URL = click.option(
    "--url", "--broker", "urls", multiple=True, default=[DEFAULT_URL], show_default=True, help="A broker; repeat for more to try."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON, one object per line.")


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_URL
@_JSON
def trace(ids: tuple[str, ...], urls: tuple[str, ...], as_json: bool) -> None:
    """Show where messages came from, which way they went and who got them.

    An ID is 32 hexadecimal digits, with or without dashes, as `postroad publish --ids` and `postroad subscribe` write it; a
    single dash reads ids from standard input, one per line. Brokers that cannot be asked, and holes in the tracks of those that
    can, are named. The command fails when a message was not found.
    """
    wanted = [MessageId.parse(text) for text in _given(ids)]
    traces = run(_trace(list(urls), wanted))
    console = Console(highlight=False)
    for each in traces:
        if as_json:
            click.echo(msgspec.json.encode(trace_json(each)))
        else:
            console.print(draw(each))
    if not all(each.found for each in traces):
        raise SystemExit(1)


@click.command()
@click.argument("message_id", metavar="ID")
@click.option("--subscriber", required=True, metavar="NAME", help="The name of a durable subscription, or as traces show it.")
@_URL
@_JSON
def explain(message_id: str, subscriber: str, urls: tuple[str, ...], as_json: bool) -> None:
    """Say why a subscriber got a message, or why not.

    The answer is one of: delivered; filtered (by which filter, and how far the message got); in doubt (it has not got so far
    yet); not subscribed (at that time); gap (it was told that the message is lost to it); lost in a crash; missing; not
    published; unknown.
    """
    explanation = run(_explain(list(urls), MessageId.parse(message_id), subscriber))
    if as_json:
        click.echo(msgspec.json.encode(explanation_json(explanation)))
    else:
        Console(highlight=False).print(draw_explanation(explanation))


def _given(ids: Sequence[str]) -> list[str]:
    return [line.strip() for line in sys.stdin if line.strip()] if list(ids) == ["-"] else list(ids)


async def _trace(urls: list[str], ids: list[MessageId]) -> list[Trace]:
    async with connect(urls, ClientConfig(name="postroad trace")) as client:
        return await client.trace_many(ids)


async def _explain(urls: list[str], message_id: MessageId, subscriber: str) -> Explanation:
    async with connect(urls, ClientConfig(name="postroad explain")) as client:
        return await client.explain(message_id, subscriber)
