"""`postroad publish`: JSON lines in, messages out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import IO

import click

from postroad.cli.messages import read_line
from postroad.client.addresses import DEFAULT_PORT
from postroad.client.connection import ClientConfig, connect
from postroad.errors import InvalidValueError
from postroad.transport.loops import run
from postroad.types import AttributeValue

DEFAULT_URL = f"postroad://127.0.0.1:{DEFAULT_PORT}"


@click.command()
@click.option("--url", "urls", multiple=True, default=[DEFAULT_URL], show_default=True, help="A broker; repeat for more to try.")
@click.option("--attribute", "-a", "pairs", multiple=True, metavar="NAME=VALUE", help="Publish one message with this attribute.")
@click.option("--payload", "-p", help="The payload of that message, as text.")
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for the last acknowledgement.")
@click.option("--ids/--no-ids", default=False, help="Write the id of every message to standard output.")
def publish(urls: tuple[str, ...], pairs: tuple[str, ...], payload: str | None, timeout: float, ids: bool) -> None:
    """Publish messages from standard input, one JSON object per line, or one message from options.

    \b
        echo '{"attributes": {"symbol": "IBM", "price": 101.5}, "payload": "hello"}' | postroad publish
        postroad publish -a symbol=IBM -a price=101.5 -p hello

    Returns when every message is durable. A line that is no message stops the command, and names the line; what stood before it
    is published.
    """  # noqa: D301  # click wants the backspace itself
    single = dict(map(_pair, pairs)) if pairs or payload is not None else None
    count = run(_publish(list(urls), single, (payload or "").encode(), timeout, show_ids=ids))
    click.echo(f"{count} messages published", err=True)


def _pair(text: str) -> tuple[str, AttributeValue]:
    """Read NAME=VALUE; a value that looks like a number or boolean is one, quotes make it a string."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--attribute")
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return name, value[1:-1]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, {"true": True, "false": False}.get(value, value)


async def _publish(
    urls: list[str], single: dict[str, AttributeValue] | None, payload: bytes, timeout_s: float, *, show_ids: bool
) -> int:
    count = 0
    async with connect(urls, ClientConfig(connect_s=min(timeout_s, 10.0))) as client:
        publisher = client.publisher()
        try:
            async for attributes, content in _messages(single, payload):
                message_id = await publisher.publish(attributes, content)
                count += 1
                if show_ids:
                    click.echo(str(message_id))
        except InvalidValueError:
            await publisher.flush(timeout_s)
            click.echo(f"{count} messages published", err=True)
            raise
        await publisher.flush(timeout_s)
    return count


async def _messages(
    single: dict[str, AttributeValue] | None, payload: bytes
) -> AsyncIterator[tuple[dict[str, AttributeValue], bytes]]:
    if single is not None:
        yield single, payload
        return
    number = 0
    while lines := await asyncio.to_thread(_some_lines, sys.stdin.buffer):
        for line in lines:
            number += 1
            if line.strip():
                yield read_line(line, number)


def _some_lines(file: IO[bytes]) -> list[bytes]:
    """Return the next lines: all that one read brings, so that a slow pipe is followed and a fast one is quick."""
    first = file.readline()
    if not first:
        return []
    peek = getattr(file, "peek", None)
    rest = peek() if peek is not None else b""
    count = rest.count(b"\n")
    return [first, *(file.readline() for _ in range(count))]
