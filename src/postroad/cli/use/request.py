"""`postroad request`: a request to whoever serves a queue."""

from __future__ import annotations

import sys

import click

from postroad.cli.shared import connected, json_option, print_json, url_option
from postroad.cli.use.publish import read_pair
from postroad.client.telesto import QueuedMessage
from postroad.transport.loops import run
from postroad.types import AttributeValue


@click.command()
@click.argument("queue")
@click.argument("payload", default="")
@click.option("--attribute", "-a", "pairs", multiple=True, metavar="NAME=VALUE", help="Attribute of the request.")
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for the answer.")
@json_option
@url_option
def request(queue: str, payload: str, pairs: tuple[str, ...], timeout: float, as_json: bool, urls: tuple[str, ...]) -> None:
    """Put a request with PAYLOAD into QUEUE, and print the answer of whoever serves it.

    \b
        postroad request calls '{"add": [2, 2]}' --timeout 5
    """  # noqa: D301  # click wants the backspace itself
    answer = run(_request(urls, queue, payload, dict(map(read_pair, pairs)), timeout))
    text = answer.payload.decode(errors="replace")
    if as_json:
        print_json({"id": str(answer.message.message_id), "payload": text, "attributes": answer.attributes})
    else:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


async def _request(
    urls: tuple[str, ...], queue: str, payload: str, attributes: dict[str, AttributeValue], timeout: float
) -> QueuedMessage:
    async with connected(urls, name="postroad request") as client:
        return await client.queue(queue).request(payload, attributes=attributes, timeout=timeout)
