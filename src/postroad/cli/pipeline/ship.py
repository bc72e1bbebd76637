"""`postroad pipeline ship`: logs and tracks copied to an archive. It runs on a broker's machine, without Spark."""

from __future__ import annotations

import sys
import time

import click

from postroad import shipping


@click.command()
@click.option("--data", multiple=True, metavar="DIR", help="Data directory of a broker, or a directory of them; may be repeated.")
@click.option(
    "--to", "archive", required=True, metavar="URI", help="The archive: a directory, or a URI such as s3://bucket/postroad."
)
@click.option(
    "--unfinished", is_flag=True, help="Ship the durable part of open segments as well, and unfinished elements of tracks."
)
@click.option("--every", type=click.FloatRange(min=1), metavar="SECONDS", help="Repeat at this interval, until you stop it.")
@click.option("--verify", is_flag=True, help="Instead, read the archive and compare it with what was shipped.")
def ship(data: tuple[str, ...], archive: str, unfinished: bool, every: float | None, verify: bool) -> None:
    """Copy closed log segments and tracks to an archive, such as an object store; the jobs read it as --data.

    Every file is checked before it is sent and compared afterwards. Run it as often as you like: it sends only what is new. It
    does not need Spark.
    """
    if not data and not verify:
        raise click.UsageError("give --data with the data directory of a broker")
    while True:
        done = shipping.check(archive) if verify else shipping.ship(data, archive, unfinished=unfinished)
        said = f"{done.present:,} files checked" if verify else f"{done.files:,} files shipped, {done.bytes:,} bytes"
        click.echo(said if verify else f"{said}; {done.present:,} were there")
        for problem in done.problems:
            click.echo(f"{'damaged' if verify else 'not shipped'}: {problem.file}: {problem.reason}", err=True)
        if every is None or verify:
            sys.exit(1 if done.problems else 0)
        time.sleep(every)
