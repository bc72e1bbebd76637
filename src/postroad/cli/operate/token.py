"""`postroad token`: the identities of clients and their permissions, in a broker's file of identities."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click
import msgspec

from postroad.security.identities import Identity, create_identity, read_identities, revoke_identity

_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
FILE = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("identities.toml"),
    show_default=True,
    help="The file that `[security] identities` of the broker names.",
)


@click.group()
def token() -> None:
    """Create, list and revoke the identities of clients, with their permissions."""


@token.command(short_help="Create an identity and print its token.")
@click.argument("name")
@FILE
@click.option("--publish", help="A filter that every published message must match, or `all`.")
@click.option("--subscribe", help="A filter that every received message matches, or `all`.")
@click.option(
    "--queue", "queues", multiple=True, metavar="ACTION:NAME", help="put, take or manage; NAME may end in *. Repeatable."
)
@click.option("--topic", "topics", multiple=True, metavar="ACTION:NAME", help="put or take; NAME may end in *. Repeatable.")
@click.option("--trace", is_flag=True, help="Allow traces and explanations of all messages.")
@click.option("--admin", is_flag=True, help="Allow administration: status, limits, durable subscriptions of others.")
@click.option("--expires", metavar="TIME", help="How long it is valid, such as 12h or 30d. Default: until it is revoked.")
@click.option(
    "--certificate-only", is_flag=True, help="Make no token: the client has a certificate from `postroad ca issue client`."
)
def create(
    name: str,
    *,
    path: Path,
    publish: str | None,
    subscribe: str | None,
    queues: tuple[str, ...],
    topics: tuple[str, ...],
    trace: bool,
    admin: bool,
    expires: str | None,
    certificate_only: bool,
) -> None:
    """Create the identity NAME and print its token, which is shown only this once.

    What is not allowed here is forbidden. A running broker reads the file by itself within a few seconds.
    """
    fields = {
        "name": name,
        "publish": _permission(publish),
        "subscribe": _permission(subscribe),
        "queues": queues,
        "topics": topics,
        "trace": trace,
        "admin": admin,
        "expires": None if expires is None else datetime.now(UTC) + _duration(expires),
    }
    try:
        identity = msgspec.convert(fields, Identity)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"not a valid identity: {error}") from error
    made = create_identity(path, identity, with_token=not certificate_only)
    if made is None:
        click.echo(f"Identity {name} is in {path}.", err=True)
    else:
        click.echo(f"Identity {name} is in {path}. Its token, shown only now:", err=True)
        click.echo(made)


@token.command("list")
@FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(path: Path, *, as_json: bool) -> None:
    """List the identities with their permissions. Tokens are not stored and cannot be shown."""
    identities = list(read_identities(path).by_name.values())
    if as_json:
        shown = [{key: value for key, value in msgspec.to_builtins(each).items() if key != "token_sha256"} for each in identities]
        click.echo(json.dumps(shown, indent=2))
        return
    if not identities:
        click.echo(f"{path} has no identities; `postroad token create NAME` makes one")
    for each in identities:
        until = "" if each.expires is None else f", until {each.expires:%Y-%m-%d %H:%M} UTC"
        click.echo(f"{each.name} ({'token' if each.token_sha256 else 'certificate only'}{until})")
        for scope, allowed in (("publish", each.publish), ("subscribe", each.subscribe)):
            click.echo(f"  {scope}: {'everything' if allowed is True else allowed or 'nothing'}")
        for scope, grants in (("queues", each.queues), ("topics", each.topics)):
            if grants:
                click.echo(f"  {scope}: {', '.join(grants)}")
        also = [scope for scope in ("trace", "admin") if getattr(each, scope)]
        if also:
            click.echo(f"  also: {', '.join(also)}")


@token.command()
@click.argument("name")
@FILE
def revoke(name: str, *, path: Path) -> None:
    """Take the identity NAME out of the file. Brokers close its connections within a few seconds."""
    revoke_identity(path, name)
    click.echo(f"Identity {name} is revoked.")


def _permission(text: str | None) -> bool | str:
    return False if text is None else True if text == "all" else text


def _duration(text: str) -> timedelta:
    parts = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if parts is None:
        raise click.BadParameter(f"{text!r} is no time: write 30m, 12h or 90d", param_hint="--expires")
    return timedelta(seconds=int(parts[1]) * _UNITS[parts[2]])
