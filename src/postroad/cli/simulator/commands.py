"""`postroad sim`: simulated worlds that try to break Postroad."""

from __future__ import annotations

from typing import Final

import click

from postroad.cli.lazy import LazyGroup

# name -> (module, attribute, one line for --help)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "soak": ("postroad.cli.simulator.soak", "soak", "Run many random seeds of the overlay and check every delivery."),
    "topics": ("postroad.cli.simulator.topics", "topics", "Run random seeds of the topics service: crashes, cuts, two owners."),
    "replay": ("postroad.cli.simulator.replay", "replay", "Show the events of one seed, and the cause of each violation."),
    "shrink": ("postroad.cli.simulator.replay", "shrink", "Find the fewest faults and clients with which a seed still fails."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def sim() -> None:
    """Try to break Postroad in a simulated world: virtual time, one seed, every kind of fault."""
