"""`postroad topics` runs and shows the service; `postroad topic` uses it."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from postroad.errors import TopicsNotSubscribedError, TopicsUnavailableError
from postroad.topics.client import DATA, DEFAULT_DATA, DEFAULT_PROXY, PROXIES, to_bytes
from postroad.topics.drivers import Process, proxy_process, server_process
from postroad.topics.inquiry import inquire_service
from postroad.topics.keys import KEY, Door, create_client_key, create_service_key, read_key
from postroad.topics.machines.options import CallOptions, ClientOptions, ServerOptions
from postroad.topics.machines.server import readable
from postroad.topics.proxies_file import load_proxies
from postroad.topics.sync import TopicClient, connect

F = TypeVar("F", bound=Callable[..., Any])

_FILE = "postroad.topics.proxies_file"
EMPTY = 3  # exit code of `get` when there is nothing to receive


def _choose_proxies(context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Take what --proxy says, else what the file says, else the default."""
    file = context.meta.get(_FILE)
    if file is None:
        return given or (DEFAULT_PROXY,)
    if context.get_parameter_source("proxies") is ParameterSource.COMMANDLINE:
        raise click.UsageError("give --proxy or --proxies-file, not both")
    return load_proxies(file)


def _keep_file(context: click.Context, _option: click.Parameter, file: Path | None) -> None:
    context.meta[_FILE] = file


def _proxies_option(function: F) -> F:
    proxies = click.option(
        "--proxy",
        "proxies",
        multiple=True,
        envvar=PROXIES,
        callback=_choose_proxies,
        help=f"Address of a proxy, as host:port; repeat it for each proxy, in the order to try them.  [default: {DEFAULT_PROXY}]",
    )
    file = click.option(
        "--proxies-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="POSTROAD_PROXIES_FILE",
        is_eager=True,
        expose_value=False,
        callback=_keep_file,
        help="File with the address of one proxy per line, instead of --proxy.",
    )
    return proxies(file(function))


def _data_option(function: F) -> F:
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar=DATA,
        default=Path(DEFAULT_DATA),
        show_default=True,
        help="Directory for the databases. No other place is written to.",
    )(function)


def _door_options(function: F) -> F:
    path = click.Path(path_type=Path, dir_okay=False)
    key = click.option("--key", type=path, envvar=KEY, help="The key of the service (`postroad topics keys service`).")
    identities = click.option("--identities", type=path, help="The file of clients and their permissions.")
    insecure = click.option("--insecure", is_flag=True, help="Let everybody who reaches the address do everything.")
    return key(identities(insecure(function)))


def _door(bind: str, key: Path | None, identities: Path | None, *, insecure: bool) -> Door:
    """Return whom a server or proxy lets in; refuse an address that others reach without a key."""
    door = Door(None if key is None else read_key(key), identities)
    door.check_exposure(bind, insecure=insecure)
    if insecure:
        click.echo(f"INSECURE: everybody who reaches {bind} may do everything (--insecure)", err=True)
    return door


@click.group()
def topics() -> None:
    """Run the topics service: servers that own topics, proxies in front of them."""


@topics.command()
@click.argument("server_id")
@click.option("--bind", default="127.0.0.1:0", show_default=True, help="Address to listen on; port 0 chooses a free port.")
@click.option("--advertise", help="Address at which others reach this server, if it differs from --bind.")
@_proxies_option
@_data_option
@click.option(
    "--period", type=click.FloatRange(0.05, 3600), default=5.0, show_default=True, help="Seconds between announcements."
)
@click.option(
    "--skew",
    type=click.IntRange(0, 200),
    default=20,
    show_default=True,
    help="Largest difference between the clocks of two servers, in milliseconds.",
)
@click.option(
    "--retention",
    type=click.FloatRange(0),
    default=7 * 86_400.0,
    show_default=True,
    help="How many seconds to keep messages that all subscribers have read, at most.",
)
@_door_options
def server(
    *,
    server_id: str,
    bind: str,
    advertise: str | None,
    proxies: tuple[str, ...],
    data: Path,
    period: float,
    skew: int,
    retention: float,
    key: Path | None,
    identities: Path | None,
    insecure: bool,
) -> None:
    """Run the server SERVER_ID. Name every proxy of the service."""
    options = ServerOptions(period_s=period, skew_ms_max=skew, retention_s=retention)
    door, name = _door(bind, key, identities, insecure=insecure), to_bytes(server_id)
    _run(server_process(name, bind=bind, advertise=advertise, proxies=proxies, data=data, options=options, door=door), "server")


@topics.command()
@click.argument("proxy_id")
@click.option("--bind", default=DEFAULT_PROXY, show_default=True, help="Address to listen on; servers and clients connect to it.")
@_data_option
@click.option("--forget", multiple=True, metavar="SERVER_ID", help="Remove a server that will never return, and its topics.")
@_door_options
def proxy(
    *,
    proxy_id: str,
    bind: str,
    data: Path,
    forget: tuple[str, ...],
    key: Path | None,
    identities: Path | None,
    insecure: bool,
) -> None:
    """Run the proxy PROXY_ID."""
    door = _door(bind, key, identities, insecure=insecure)
    _run(proxy_process(to_bytes(proxy_id), bind=bind, data=data, forget=[to_bytes(name) for name in forget], door=door), "proxy")


@topics.group()
def keys() -> None:
    """Make the keys of a guarded topics service."""


@keys.command("service", short_help="Make the key that servers and proxies share.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def service_key(directory: Path) -> None:
    """Make the key that all servers and proxies of the service share, in DIRECTORY."""
    click.echo(f"The key of the service, for its servers and proxies only: {create_service_key(directory)}")


@keys.command("client", short_help="Make the identity and key of a client.")
@click.argument("name")
@click.option("--service", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The key of the service.")
@click.option(
    "--file",
    "identities",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("identities.toml"),
    show_default=True,
    help="The file of identities of the servers and proxies.",
)
@click.option("--topic", "granted", multiple=True, metavar="ACTION:NAME", help="put or take; NAME may end in *. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where to write the client's key.")
def client_key(*, name: str, service: Path, identities: Path, granted: tuple[str, ...], out: Path) -> None:
    """Make the identity NAME and its key. The client names it with POSTROAD_TOPICS_KEY."""
    click.echo(f"The key of {name}: {create_client_key(service, identities, name, granted, out)}")


def _run(process: Process, kind: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    process.on_ready = lambda: click.echo(f"{kind} {readable(process.name)} listens on {process.address.decode()}")
    process.run()
    click.echo(f"{kind} {readable(process.name)} stopped", err=True)


@topics.command()
@_proxies_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--timeout", type=click.FloatRange(0.01, 60), default=1.0, show_default=True, help="Seconds to wait for each answer."
)
def status(*, proxies: tuple[str, ...], as_json: bool, timeout: float) -> None:
    """Show proxies, servers, topics with their owners, and sizes."""
    found = inquire_service(proxies, timeout)
    seen, servers = found.proxies, found.servers
    if as_json:
        whole = {
            "proxies": [{"address": address, "up": report is not None, "report": report} for address, report in seen],
            "servers": [
                {"server": name, "address": address, "up": report is not None, "report": report}
                for name, (address, report) in servers.items()
            ],
        }
        click.echo(json.dumps(whole))
    else:
        _show(seen, servers)
    if not found.is_reachable:
        raise TopicsUnavailableError(f"no proxy answers at {', '.join(proxies)}; start one with: postroad topics proxy ID")


def _show(seen: list[tuple[str, Any]], servers: dict[str, tuple[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - rich costs a tenth of a second, which a put should not pay
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    table = Table("proxy", "address", "state", "servers", "topics", "requests under way")
    for address, report in seen:
        if report is None:
            table.add_row("?", address, "[red]no answer[/red]", "", "", "")
        else:
            counts = [str(len(report["servers"])), str(len(report["topics"])), str(report["under_way"])]
            table.add_row(report["proxy"], address, "up", *counts)
    console.print(table)
    table = Table("server", "address", "state", "topics", "messages", "bytes")
    for name, (address, report) in servers.items():
        if report is None:
            table.add_row(name, address, "[red]no answer[/red]", "", "", "")
        else:
            own = report["topics"]
            sums = [str(report["count"]), str(sum(t["messages"] for t in own)), str(sum(t["bytes"] for t in own))]
            table.add_row(name, address, "up", *sums)
    console.print(table)
    table = Table("topic", "owner", "state", "subscribers", "unread", "kept", "bytes")
    for name, (_, report) in servers.items():
        for topic in report["topics"] if report else []:
            counts = [str(topic[key]) for key in ("subscribers", "unread", "messages", "bytes")]
            table.add_row(topic["topic"], name, topic["state"], *counts)
    console.print(table)


@click.group()
def topic() -> None:
    """Use the topics service as a client: subscribe, unsubscribe, get, put."""


def _client_options(function: F) -> F:
    patience = click.option(
        "--patience",
        type=click.FloatRange(0),
        default=5.0,
        show_default=True,
        help="How many seconds to retry after errors that may be temporary.",
    )
    timeout = click.option(
        "--timeout-ms",
        type=click.IntRange(1, 60_000),
        default=100,
        show_default=True,
        help="How long to wait for one answer, of three attempts.",
    )
    return patience(timeout(_proxies_option(_data_option(function))))


def _open(client_id: str, proxies: tuple[str, ...], data: Path, patience: float, timeout_ms: int) -> TopicClient:
    options = ClientOptions(calls=CallOptions(timeout_ms=timeout_ms))
    return connect(proxies, name=client_id, data=data, timeout=patience, options=options)


def _quote(*words: str) -> str:
    return shlex.join(words)


@topic.command()
@click.argument("client_id")
@click.argument("topic_name", metavar="TOPIC")
@_client_options
def subscribe(*, client_id: str, topic_name: str, proxies: tuple[str, ...], data: Path, patience: float, timeout_ms: int) -> None:
    """Subscribe CLIENT_ID to TOPIC. It receives the messages that are put from now on."""
    with _open(client_id, proxies, data, patience, timeout_ms) as client:
        client.subscribe(topic_name)


@topic.command()
@click.argument("client_id")
@click.argument("topic_name", metavar="TOPIC")
@_client_options
def unsubscribe(
    *, client_id: str, topic_name: str, proxies: tuple[str, ...], data: Path, patience: float, timeout_ms: int
) -> None:
    """Unsubscribe CLIENT_ID from TOPIC. It loses the messages that it has not received yet."""
    with _open(client_id, proxies, data, patience, timeout_ms) as client:
        client.unsubscribe(topic_name)


@topic.command(short_help="Receive one message and print its content.")
@click.argument("client_id")
@click.argument("topic_name", metavar="TOPIC")
@click.option("--wait", type=click.FloatRange(0), default=0.0, show_default=True, help="Seconds to wait for a message.")
@click.option("--again", is_flag=True, help="Print the last received message again, for example after a crash during the output.")
@_client_options
def get(
    *,
    client_id: str,
    topic_name: str,
    wait: float,
    again: bool,
    proxies: tuple[str, ...],
    data: Path,
    patience: float,
    timeout_ms: int,
) -> None:
    """Receive one message of TOPIC as CLIENT_ID and print its content. The exit code is 3 if there is none."""
    with _open(client_id, proxies, data, patience, timeout_ms) as client:
        try:
            message = client.last(topic_name) if again else client.get(topic_name, timeout=wait)
        except TopicsNotSubscribedError as error:
            hint = f"{error}; subscribe first: postroad topic subscribe {_quote(client_id, topic_name)}"
            raise TopicsNotSubscribedError(hint) from error
        if message is None:
            click.echo("no message", err=True)
            sys.exit(EMPTY)
        sys.stdout.buffer.write(message.body)
        sys.stdout.buffer.flush()


@topic.command(short_help="Put the content of a file on a topic.")
@click.argument("client_id")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("message_path", type=click.File("rb"), required=False)
@click.option("--text", help="Put this text instead of the content of a file.")
@click.option(
    "--finish", is_flag=True, help="Repeat the last put, which ended with an error or a crash; its message is stored only once."
)
@_client_options
def put(
    *,
    client_id: str,
    topic_name: str,
    message_path: Any,
    text: str | None,
    finish: bool,
    proxies: tuple[str, ...],
    data: Path,
    patience: float,
    timeout_ms: int,
) -> None:
    """Put the content of MESSAGE_PATH (- for standard input) on TOPIC as CLIENT_ID."""
    if (message_path is not None) + (text is not None) + finish != 1:
        raise click.UsageError("give one of MESSAGE_PATH, --text and --finish")
    with _open(client_id, proxies, data, patience, timeout_ms) as client:
        if finish:
            client.finish_put(topic_name)
            return
        body = text.encode("utf-8", "surrogateescape") if text is not None else message_path.read()
        try:
            client.put(topic_name, body)
        except TopicsUnavailableError as error:
            raise TopicsUnavailableError(
                f"{error}; it is safe to repeat it with: postroad topic put {_quote(client_id, topic_name)} --finish"
            ) from error


@topic.command(name="forget-home", short_help="Let a client leave a server that was lost.")
@click.argument("client_id")
@click.argument("topic_name", metavar="TOPIC")
@_client_options
def forget_home(
    *, client_id: str, topic_name: str, proxies: tuple[str, ...], data: Path, patience: float, timeout_ms: int
) -> None:
    """Let CLIENT_ID use any server for TOPIC again after the server with its data was lost."""
    with _open(client_id, proxies, data, patience, timeout_ms) as client:
        client.forget_home(topic_name)
