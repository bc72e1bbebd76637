"""`postroad ca`: a private certificate authority for one overlay."""

from __future__ import annotations

from pathlib import Path

import click

from postroad.security.authority import CERTIFICATE_DAYS, CERTIFICATE_NAME, Issued, create_authority
from postroad.security.authority import issue as issue_certificate
from postroad.security.tls import broker_uri, client_uri

DIRECTORY = click.argument("directory", type=click.Path(path_type=Path, file_okay=False))


@click.group()
def ca() -> None:
    """Make certificates for brokers and clients (needs the extra `security`)."""


@ca.command()
@DIRECTORY
@click.option("--name", default="Postroad private authority", show_default=True, help="Name of the authority in its certificate.")
def init(directory: Path, *, name: str) -> None:
    """Make a new certificate authority in DIRECTORY.

    Copy `ca.pem` to every broker and client. Keep `ca.key` on one machine: whoever has it can be anybody.
    """
    made = create_authority(directory, name)
    click.echo(f"The authority is ready, until {made.expires:%Y-%m-%d}.")
    click.echo(f"  certificate, for every broker and client: {made.certificate}")
    click.echo(f"  private key, for `postroad ca issue` only: {made.key}")


@ca.group()
def issue() -> None:
    """Issue a certificate, signed by the authority in a directory."""


ISSUE_OPTIONS = [
    click.option("--ca", "authority", type=click.Path(path_type=Path, file_okay=False), required=True, help="The authority."),
    click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Where to write the files."),
    click.option(
        "--days", type=click.IntRange(1, 3650), default=CERTIFICATE_DAYS, show_default=True, help="How long it is valid."
    ),
]
AUTHORITY, OUT, DAYS = ISSUE_OPTIONS


@issue.command(short_help="Issue a certificate for the broker with this ID.")
@click.argument("broker_id", type=click.IntRange(1, 0xFFFF_FFFF), metavar="ID")
@AUTHORITY
@OUT
@DAYS
@click.option("--address", "addresses", multiple=True, help="A host name or IP address of the broker; may be repeated.")
def broker(broker_id: int, *, authority: Path, out: Path, days: int, addresses: tuple[str, ...]) -> None:
    """Issue a certificate for the broker with this ID (the `id` in its configuration)."""
    made = issue_certificate(authority, out, f"broker-{broker_id}", broker_uri(broker_id), addresses=addresses, days=days)
    _show(made, authority)


@issue.command()
@click.argument("name")
@AUTHORITY
@OUT
@DAYS
def client(name: str, *, authority: Path, out: Path, days: int) -> None:
    """Issue a certificate for the identity NAME. What it may do is in the identities file of each broker."""
    _show(issue_certificate(authority, out, f"client-{name}".replace("/", "-"), client_uri(name), days=days), authority)


def _show(made: Issued, authority: Path) -> None:
    click.echo(f"Issued, until {made.expires:%Y-%m-%d}:")
    click.echo(f"  certificate: {made.certificate}")
    click.echo(f"  private key: {made.key}")
    click.echo(f"  authority:   {authority / CERTIFICATE_NAME}")
