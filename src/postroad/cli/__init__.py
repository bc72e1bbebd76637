"""The `postroad` command. Subcommands are imported when used, so `--help` is quick and optional parts stay optional."""

from __future__ import annotations

from typing import Final

import click

from postroad import __version__
from postroad.cli.lazy import LazyGroup

# name -> (module, attribute, one line for --help)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "broker": ("postroad.cli.broker", "broker", "Run a broker."),
    "overlay": ("postroad.cli.overlay", "overlay", "Run all brokers of a topology file on this machine."),
    "publish": ("postroad.cli.publish", "publish", "Publish messages: JSON lines from standard input."),
    "subscribe": ("postroad.cli.subscribe", "subscribe", "Receive messages: JSON lines to standard output."),
    "queue": ("postroad.cli.queue", "queue", "Create, fill, look into and empty queues."),
    "trace": ("postroad.cli.trace", "trace", "Show where messages came from, which way they went and who got them."),
    "explain": ("postroad.cli.trace", "explain", "Say why a subscriber got a message, or why not."),
    "demo": ("postroad.cli.demo", "demo", "A short tour of what Postroad does, on embedded defaults."),
    "topics": ("postroad.cli.topics", "topics", "Run and show the topics service: servers, proxies, status."),
    "topic": ("postroad.cli.topics", "topic", "Use topics: subscribe, unsubscribe, get, put."),
    "pipeline": (
        "postroad.cli.pipeline",
        "pipeline",
        "Jobs over logs and tracks, on Spark: trace, audit, compact, ingest, rates, report.",
    ),
    "tracking": ("postroad.cli.tracking", "tracking", "Choose the parameters of message tracking."),
    "sim": ("postroad.cli.sim", "sim", "Try to break Postroad in a simulated world."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
@click.version_option(__version__, prog_name="postroad")
def main() -> None:
    """Postroad: messaging you can audit."""
