"""`postroad trace` and `postroad explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from postroad.cli.shared import connected, console, json_option, print_json, url_option
from postroad.cli.use.trees import draw, draw_explanation, explanation_json, trace_json
from postroad.tracking.queries.explanation import Explanation
from postroad.tracking.queries.reconstruction import Trace
from postroad.transport.loops import run
from postroad.types import MessageId


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@url_option
@json_option
def trace(ids: tuple[str, ...], urls: tuple[str, ...], as_json: bool) -> None:
    """Show the paths of messages: publisher, brokers, subscribers.

    An ID has 32 hexadecimal digits, with or without dashes, as printed by `postroad publish --ids` and `postroad subscribe`. A
    single dash reads ids from standard input, one per line. The output names brokers that did not answer, and holes in the
    tracks of the others. The exit code is 1 if a message was not found.
    """
    wanted = [MessageId.parse(text) for text in _read_given(ids)]
    traces = run(_trace(urls, wanted))
    out = console()
    for each in traces:
        if as_json:
            print_json(trace_json(each))
        else:
            out.print(draw(each))
    if not all(each.found for each in traces):
        raise SystemExit(1)


@click.command()
@click.argument("message_id", metavar="ID")
@click.option(
    "--subscriber", required=True, metavar="NAME", help="Name of a durable subscription, or the name that a trace shows."
)
@url_option
@json_option
def explain(message_id: str, subscriber: str, urls: tuple[str, ...], as_json: bool) -> None:
    """Explain why a subscriber received a message, or why not.

    The answer is one of: delivered; filtered (with the filter, and the last broker that had the message); in doubt (not decided
    yet); not subscribed (at that time); gap (the broker reported to the subscriber that the message is lost); lost in a crash;
    missing; not published; unknown.
    """
    explanation = run(_explain(urls, MessageId.parse(message_id), subscriber))
    if as_json:
        print_json(explanation_json(explanation))
    else:
        console().print(draw_explanation(explanation))


def _read_given(ids: Sequence[str]) -> list[str]:
    return [line.strip() for line in sys.stdin if line.strip()] if list(ids) == ["-"] else list(ids)


async def _trace(urls: tuple[str, ...], ids: list[MessageId]) -> list[Trace]:
    async with connected(urls, name="postroad trace") as client:
        return await client.trace_many(ids)


async def _explain(urls: tuple[str, ...], message_id: MessageId, subscriber: str) -> Explanation:
    async with connected(urls, name="postroad explain") as client:
        return await client.explain(message_id, subscriber)
