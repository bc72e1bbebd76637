"""`postroad publish`: JSON lines in, messages out."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import click

from postroad.cli.lazy import INTERRUPTED
from postroad.cli.shared import connected, url_option
from postroad.cli.use.messages import read_line
from postroad.errors import InvalidValueError
from postroad.transport.loops import run
from postroad.types import AttributeValue

READ_BYTES: Final = 1 << 16
LINE_BYTES_MAX: Final = 64 << 20
PROGRESS_S: Final = 1.0


@click.command()
@url_option
@click.option(
    "--attribute", "-a", "pairs", multiple=True, metavar="NAME=VALUE", help="Attribute of a single message; may be repeated."
)
@click.option("--payload", "-p", help="Payload of a single message, as text.")
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for the last acknowledgement.")
@click.option("--ids/--no-ids", default=False, help="Write the id of every message to standard output.")
def publish(urls: tuple[str, ...], pairs: tuple[str, ...], payload: str | None, timeout: float, ids: bool) -> None:
    """Publish messages from standard input, one JSON object per line, or one message from options.

    \b
        echo '{"attributes": {"symbol": "IBM", "price": 101.5}, "payload": "hello"}' | postroad publish
        postroad publish -a symbol=IBM -a price=101.5 -p hello

    The command returns when every message is durable. An invalid line ends the command with an error that names the line; the
    messages before it are published. After Ctrl-C the command reads no more lines, waits until the messages it has read are
    durable, and returns 130. A second Ctrl-C ends it immediately.
    """  # noqa: D301  # click wants the backspace itself
    single = dict(map(read_pair, pairs)) if pairs or payload is not None else None
    progress = _Progress()
    try:
        run(_publish(urls, single, (payload or "").encode(), timeout, progress, show_ids=ids))
    finally:
        if progress.durable:
            messages = "message" if progress.count == 1 else "messages"
            click.echo(("\r" if sys.stderr.isatty() else "") + f"{progress.count} {messages} published", err=True)
    if progress.interrupted:
        sys.exit(INTERRUPTED)


@dataclass(slots=True)
class _Progress:
    count: int = 0
    durable: bool = False  # all that were counted
    interrupted: bool = False


def read_pair(text: str) -> tuple[str, AttributeValue]:
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
    urls: tuple[str, ...],
    single: dict[str, AttributeValue] | None,
    payload: bytes,
    timeout_s: float,
    progress: _Progress,
    *,
    show_ids: bool,
) -> None:
    async with connected(urls, name="postroad publish", timeout=min(timeout_s, 10.0)) as client:
        publisher = client.publisher()

        async def publish_all() -> None:
            async for attributes, content in _messages(single, payload):
                message_id = await publisher.publish(attributes, content)
                progress.count += 1
                if show_ids:
                    click.echo(str(message_id))

        task = asyncio.create_task(publish_all())
        _stop_on_signals(task, progress)
        showing = asyncio.create_task(_show_progress(progress))
        try:
            with suppress(asyncio.CancelledError):
                await task
        finally:
            await publisher.flush(timeout_s)
            showing.cancel()
            progress.durable = True
            for number in (signal.SIGINT, signal.SIGTERM):  # uvloop leaves them behind when it is closed
                asyncio.get_running_loop().remove_signal_handler(number)


async def _show_progress(progress: _Progress) -> None:
    """Show a person how far long work is."""
    while sys.stderr.isatty():
        before = progress.count
        await asyncio.sleep(PROGRESS_S)
        click.echo(f"\r{progress.count:,} messages, {(progress.count - before) / PROGRESS_S:,.0f}/s ", err=True, nl=False)


def _stop_on_signals(task: asyncio.Task[None], progress: _Progress) -> None:
    """Let the first SIGINT or SIGTERM stop the reading; the second ends the process at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        progress.interrupted = True
        task.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError, ValueError):  # not in the main thread: nobody sends us signals
            loop.add_signal_handler(number, stop)


async def _messages(
    single: dict[str, AttributeValue] | None, payload: bytes
) -> AsyncIterator[tuple[dict[str, AttributeValue], bytes]]:
    if single is not None:
        yield single, payload
        return
    number = 0
    async for line in _lines():
        number += 1
        if line.strip():
            yield read_line(line, number)


async def _lines() -> AsyncIterator[bytes]:
    """Read standard input: a slow pipe is followed line by line, a fast one is read in large pieces."""
    pieces: list[bytes] = []
    held = 0
    while data := await _read_some():
        first, *rest = data.split(b"\n")
        pieces.append(first)
        held += len(first)
        if held > LINE_BYTES_MAX:
            raise InvalidValueError(f"a line of standard input has more than {LINE_BYTES_MAX >> 20} MiB")
        if rest:
            yield b"".join(pieces)
            for line in rest[:-1]:
                yield line
            pieces, held = [rest[-1]], len(rest[-1])
    yield b"".join(pieces)


async def _read_some() -> bytes:
    """Read in a thread that nobody waits for, so that the process can end while the other side is silent."""
    loop = asyncio.get_running_loop()
    data: asyncio.Future[bytes] = loop.create_future()

    def deliver(found: bytes) -> None:
        if not data.done():
            data.set_result(found)

    def read() -> None:
        found = _read_stdin()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, found)

    threading.Thread(target=read, name="postroad-stdin", daemon=True).start()
    return await data


def _read_stdin() -> bytes:
    try:
        return os.read(sys.stdin.fileno(), READ_BYTES)  # not through its buffer: that one is locked while we wait
    except (io.UnsupportedOperation, AttributeError):
        return sys.stdin.buffer.read(READ_BYTES)  # not a file: in tests
    except OSError:
        return b""
