"""`postroad sim`: soak a part of Postroad in its simulator."""

from __future__ import annotations

from typing import Final

import click

from postroad.cli.lazy import LazyGroup

# name -> (module, attribute, one line for --help)
SIMULATIONS: Final[dict[str, tuple[str, str, str]]] = {
    "topics": ("postroad.cli.sim_topics", "topics", "The topics service: proxies, servers, clients; crashes, cuts, two owners."),
}


@click.group(cls=LazyGroup, lazy=SIMULATIONS)
def sim() -> None:
    """Run a part of Postroad on a virtual network, disk and clock, with seeded faults, and check what it promises."""
