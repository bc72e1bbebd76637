"""`postroad broker`: run one broker."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from postroad.queues.broker_service import queues_of
from postroad.runtime.config import DEFAULT_PORT, Neighbour, NodeConfig, Queues, check_no_password, load_config, split_address
from postroad.runtime.serve import serve
from postroad.runtime.services import Service
from postroad.tracking.histories.settings import Strategy


def _services(config: NodeConfig) -> list[Service]:
    """Return the services of the broker beside publish and subscribe."""
    queues = queues_of(config)
    services: list[Service] = [] if queues is None else [queues]
    if config.metrics.listen:
        from postroad.metrics import MetricsService  # noqa: PLC0415  # prometheus-client is an optional extra

        services.append(MetricsService(config.metrics.listen, queues))
    if config.console.listen:
        from postroad.console.service import ConsoleService  # noqa: PLC0415  # starlette and uvicorn are an optional extra

        services.append(ConsoleService(config, queues))
    return services


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file of the broker (docs/reference/config.md).",
)
@click.option("--id", "broker_id", type=click.IntRange(1, 0xFFFF_FFFF), help="Number of the broker, unique in the overlay.  [1]")
@click.option("--name", help="Name shown in logs and tools.  [broker-ID]")
@click.option("--data-dir", help="Directory for its files.  [postroad-data]")
@click.option(
    "--listen", metavar="HOST:PORT", help=f"Address to listen on; port 0 chooses a free port.  [127.0.0.1:{DEFAULT_PORT}]"
)
@click.option(
    "--neighbour",
    "neighbours",
    metavar="HOST:PORT",
    multiple=True,
    help="Address of a broker to keep a link to; may be repeated.",
)
@click.option(
    "--queues",
    metavar="STORE",
    help="Where queues are stored: a file in the data directory, a postgresql:// URL, or '' for none.",
)
@click.option(
    "--tracking",
    type=click.Choice([str(each) for each in Strategy]),
    help="How messages are tracked; `null` for no tracking.  [exact]",
)
@click.option("--console", metavar="HOST:PORT", help="Serve the web console at this address on loopback.")
@click.option(
    "--replace",
    "replaces",
    is_flag=True,
    help="The files of this broker are lost: ask the neighbours for its last state and start with empty files.",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least severe messages to log.  [info]"
)
def broker(
    config: Path | None,
    broker_id: int | None,
    name: str | None,
    data_dir: str | None,
    listen: str | None,
    neighbours: tuple[str, ...],
    queues: str | None,
    tracking: str | None,
    console: str | None,
    replaces: bool,
    log_level: str | None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    With --config, the settings come from the file, and the other options replace single settings. Without --config, the broker
    uses the options and the defaults, and serves only this machine:

    \b
        postroad broker --data-dir /var/lib/postroad
    """  # noqa: D301  # click wants the backspace itself
    base = NodeConfig(id=1, data_dir="postroad-data") if config is None else load_config(config)
    given = {"id": broker_id, "name": name, "data_dir": data_dir, "listen": listen, "log_level": log_level}
    changes: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    if neighbours:
        changes["neighbours"] = tuple(Neighbour(address=address) for address in neighbours)
    if queues is not None:
        check_no_password(queues, "--queues")
        changes["queues"] = Queues(store=queues)
    if tracking is not None:
        changes["tracking"] = msgspec.structs.replace(base.tracking, strategy=tracking)
    if console is not None:
        changes["console"] = msgspec.structs.replace(base.console, listen=console)
    chosen = msgspec.structs.replace(base, **changes)
    for address in (chosen.listen, *(each.address for each in chosen.neighbours)):
        split_address(address)

    def ready(port: int) -> None:
        host, _ = split_address(chosen.listen)
        scheme = "postroads" if chosen.security.certificate else "postroad"
        click.echo(f"broker {chosen.id} ({chosen.title}) listens on {scheme}://{host}:{port}")

    serve(chosen, ready, _services(chosen), replaces=replaces)
