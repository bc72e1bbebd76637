"""What the commands that talk to a broker share: the address, the connection, the ways of printing."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console

from postroad.client.addresses import DEFAULT_URL, URL_VARIABLE, parse_addresses
from postroad.client.connection import Client, connect

F = TypeVar("F", bound=Callable[..., Any])

HINT_S: Final = 1.0
CONNECT_S: Final = 10.0
PIPE_WIDTH: Final = 10_000  # so wide that no line is wrapped

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def url_option(function: F) -> F:
    """Add `--url` to a command; its parameter is `urls`."""
    return click.option(
        "--url",
        "urls",
        multiple=True,
        envvar=URL_VARIABLE,
        default=[DEFAULT_URL],
        show_default=True,
        help=f"Address of a broker: postroad://host:port or host:port; commas separate alternatives. [env: {URL_VARIABLE}]",
    )(function)


def json_option(function: F) -> F:
    """Add `--json` to a command; its parameter is `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line; ids and ticks are strings.")(
        function
    )


@asynccontextmanager
async def connected(urls: tuple[str, ...], *, name: str = "", timeout: float = CONNECT_S) -> AsyncIterator[Client]:
    """Connect; when no broker answers within a second, say what to do meanwhile."""
    client = connect(urls, name=name, timeout=timeout)

    def hint() -> None:
        addresses = ", ".join(map(str, parse_addresses(urls)))
        click.echo(
            f"waiting for a broker at {addresses}, up to {timeout:g} s. Start one with `postroad broker`, "
            f"or name another with --url or {URL_VARIABLE}.",
            err=True,
        )

    async with AsyncExitStack() as stack:
        timer = asyncio.get_running_loop().call_later(HINT_S, hint)
        try:
            await stack.enter_async_context(client)
        finally:
            timer.cancel()
        yield client


def console(*, highlight: bool = False) -> Console:
    """Return a console that wraps lines at the width of a terminal, and nowhere else."""
    return Console(highlight=highlight, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(value: object) -> None:
    """Print one JSON object on a line."""
    click.echo(msgspec.json.encode(value))


class SinceType(click.ParamType[timedelta | datetime]):
    """A time in the past: `10m`, `2h`, `1d`, or a date such as 2026-11-19T08:00."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | datetime:
        if isinstance(value, timedelta | datetime):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhdw])", value)
        try:
            return timedelta(seconds=float(found[1]) * _UNITS[found[2]]) if found else datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 10m, 2h, 1d or 2026-11-19T08:00", param, ctx)


def age(milliseconds: float | None) -> str:
    """Return a duration as a person reads it."""
    return "-" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"
