"""The `postroad` command. Subcommands are imported when used, so `--help` is quick and optional parts stay optional."""

from __future__ import annotations

import postroad.cli.early  # noqa: F401  # first: signals that come while the rest is imported

# isort: split

from typing import Final

import click

from postroad.cli.lazy import LazyGroup

# name -> (module, attribute, one line for --help)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "broker": ("postroad.cli.operate.broker", "broker", "Run a broker."),
    "overlay": ("postroad.cli.operate.overlay", "overlay", "Run all brokers of a topology file on this machine."),
    "log": ("postroad.cli.operate.log", "log", "Find damage in a broker's logs, and repair it."),
    "publish": ("postroad.cli.use.publish", "publish", "Publish messages: JSON lines from standard input."),
    "subscribe": ("postroad.cli.use.subscribe", "subscribe", "Receive messages: JSON lines to standard output."),
    "status": (
        "postroad.cli.operate.status",
        "status",
        "Show the brokers: links, clients, subscriptions and how far they are behind.",
    ),
    "top": ("postroad.cli.operate.top", "top", "Watch brokers, links, streams and subscriptions, live in the terminal."),
    "subscriptions": ("postroad.cli.operate.subscriptions", "subscriptions", "List, show or delete durable subscriptions."),
    "admission": ("postroad.cli.operate.admission", "admission", "Show what is advertised and reserved, and what is free."),
    "link": ("postroad.cli.operate.link", "link", "Limit what a broker sends to a neighbour, while it runs."),
    "queue": ("postroad.cli.use.queue", "queue", "Create, use and inspect queues."),
    "request": ("postroad.cli.use.request", "request", "Send a request to whoever serves a queue, and print the answer."),
    "bench": ("postroad.cli.operate.bench", "bench", "Measure a running broker: latency and rates, in a few seconds."),
    "trace": ("postroad.cli.use.trace", "trace", "Show the paths of messages: publisher, brokers, subscribers."),
    "console": ("postroad.cli.operate.console", "console", "Print the address of a broker's web console."),
    "explain": ("postroad.cli.use.trace", "explain", "Explain why a subscriber received a message, or why not."),
    "demo": ("postroad.cli.demo", "demo", "Show what Postroad does: a demonstration on this machine."),
    "topics": ("postroad.cli.use.topics", "topics", "Run the topics service: servers, proxies, status."),
    "topic": ("postroad.cli.use.topics", "topic", "Use topics: subscribe, unsubscribe, get, put."),
    "pipeline": (
        "postroad.cli.pipeline.commands",
        "pipeline",
        "Jobs over logs and tracks, on Spark: trace, audit, compact, ingest, rates, report.",
    ),
    "tracking": ("postroad.cli.operate.tracking", "tracking", "Choose the parameters of message tracking."),
    "ca": ("postroad.cli.operate.authority", "ca", "Make certificates for brokers and clients."),
    "token": (
        "postroad.cli.operate.token",
        "token",
        "Create, list and revoke identities of clients, with their permissions.",
    ),
    "sim": ("postroad.cli.simulator.commands", "sim", "Test Postroad in a simulator that injects faults."),
}


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from postroad.version import VERSION  # noqa: PLC0415  # looking it up takes as long as starting Python

        click.echo(f"postroad, version {VERSION}")
        context.exit()


@click.group(cls=LazyGroup, lazy=COMMANDS)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version and exit."
)
def main() -> None:
    """Postroad: messaging you can audit."""
