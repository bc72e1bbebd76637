"""`postroad console`: where the console of a broker is."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from postroad.console.access import ADDRESS_NAME


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("postroad-data"),
    show_default=True,
    help="Data directory of the broker.",
)
@click.option("--open", "opens", is_flag=True, help="Open the address in a browser.")
def console(data_dir: Path, opens: bool) -> None:
    """Print the address of a broker's web console, with the key to enter.

    The broker must have been started with `--console` or with `listen` under `[console]`. Whoever has the address may do
    everything, so keep it to yourself.
    """
    path = data_dir / ADDRESS_NAME
    try:
        address = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise click.ClickException(
            f"{path}: {error.strerror}; start the broker with `--console 127.0.0.1:7480`, or name its directory with --data-dir"
        ) from error
    click.echo(address)
    if opens:
        webbrowser.open(address)
