"""`postroad broker`: run one broker."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from postroad.queues.mount import queues_of
from postroad.runtime.config import DEFAULT_PORT, Neighbour, NodeConfig, Queues, load_config, split_address
from postroad.runtime.serve import serve
from postroad.runtime.services import Service
from postroad.tracking.histories.settings import Strategy


def _services(config: NodeConfig) -> list[Service]:
    """Return what the broker serves beside publish and subscribe."""
    queues = queues_of(config)
    services: list[Service] = [] if queues is None else [queues]
    if config.metrics.listen:
        from postroad.metrics import MetricsService  # noqa: PLC0415  # prometheus-client is an optional extra

        services.append(MetricsService(config.metrics.listen, queues))
    return services


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="A broker's TOML file (docs/reference/config.md)."
)
@click.option("--id", "broker_id", type=click.IntRange(1, 0xFFFF_FFFF), help="The broker's number, unique in the overlay.  [1]")
@click.option("--name", help="What people call it.  [broker-ID]")
@click.option("--data-dir", help="Where it keeps its files.  [postroad-data]")
@click.option("--listen", metavar="HOST:PORT", help=f"Where it listens; port 0 takes a free one.  [127.0.0.1:{DEFAULT_PORT}]")
@click.option("--neighbour", "neighbours", metavar="HOST:PORT", multiple=True, help="Another broker to link to; repeatable.")
@click.option(
    "--queues", metavar="STORE", help="Where queues are kept: a file below the data directory, a postgresql:// URL, or ''."
)
@click.option(
    "--tracking", type=click.Choice([str(each) for each in Strategy]), help="How messages are tracked, `null` for not.  [exact]"
)
@click.option(
    "--replace",
    "replaces",
    is_flag=True,
    help="The files of this broker are known to be lost: begin anew, after the neighbours told what it was.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to tell.  [info]")
def broker(
    config: Path | None,
    broker_id: int | None,
    name: str | None,
    data_dir: str | None,
    listen: str | None,
    neighbours: tuple[str, ...],
    queues: str | None,
    tracking: str | None,
    replaces: bool,
    log_level: str | None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    With --config everything comes from the file, and the other options replace single keys of it. Without it, the options alone
    make a broker that serves this machine:

    \b
        postroad broker --data-dir /var/lib/postroad
    """  # noqa: D301  # click wants the backspace itself
    base = NodeConfig(id=1, data_dir="postroad-data") if config is None else load_config(config)
    given = {"id": broker_id, "name": name, "data_dir": data_dir, "listen": listen, "log_level": log_level}
    changes: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    if neighbours:
        changes["neighbours"] = tuple(Neighbour(address=address) for address in neighbours)
    if queues is not None:
        changes["queues"] = Queues(store=queues)
    if tracking is not None:
        changes["tracking"] = msgspec.structs.replace(base.tracking, strategy=tracking)
    chosen = msgspec.structs.replace(base, **changes)
    for address in (chosen.listen, *(each.address for each in chosen.neighbours)):
        split_address(address)

    def ready(port: int) -> None:
        host, _ = split_address(chosen.listen)
        click.echo(f"broker {chosen.id} ({chosen.title}) listens on postroad://{host}:{port}")

    serve(chosen, ready, _services(chosen), replaces=replaces)
