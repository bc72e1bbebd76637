"""`postroad top`: the overlay at a glance in a terminal. Needs the extra `top`."""

from __future__ import annotations

import click

from postroad.cli.shared import connected, url_option
from postroad.console.picture import Picture
from postroad.transport.loops import run


@click.command()
@url_option
def top(urls: tuple[str, ...]) -> None:
    """Show brokers, links, streams and durable subscriptions in the terminal, live. Press q to leave."""
    run(_show(urls))


async def _show(urls: tuple[str, ...]) -> None:
    try:
        from postroad.cli.operate.top_screen import Top  # noqa: PLC0415  # textual is an optional extra
    except ImportError as missing:
        raise click.ClickException("`postroad top` needs textual: pip install 'postroad[top]'") from missing
    async with connected(urls, name="postroad top") as client:
        picture = Picture(client, min(await client.brokers()))
        try:
            await Top(client, picture).run_async()
        finally:
            await picture.stop()
