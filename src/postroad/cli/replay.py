"""`postroad sim replay`: the story of one seed."""

from __future__ import annotations

from typing import Final

import click
from rich.console import Console
from rich.text import Text

from postroad.sim.soak import Result, run_seed
from postroad.sim.world import Line

# What a reader wants to see first; the rest comes with --all.
HEADLINES: Final = frozenset(
    {"fault", "start", "crash", "client", "subscribe", "unsubscribe", "phase", "gap", "refused", "violation"}
)
STYLES: Final = {"fault": "bold yellow", "crash": "bold red", "phase": "bold cyan", "gap": "magenta", "crashed": "bold red"}


@click.command()
@click.option("--seed", type=click.IntRange(0), required=True, help="The seed to tell about.")
@click.option("--all", "everything", is_flag=True, help="Also every delivery, activation and refusal.")
@click.option("--from", "since", type=float, default=0.0, help="Begin the story at this virtual second.")
def replay(seed: int, everything: bool, since: float) -> None:
    """Run one seed again and tell its story: faults, subscriptions, and what went wrong."""
    result = run_seed(seed, story=True)
    console = Console(highlight=False, soft_wrap=True)
    for line in result.story:
        if line.at >= since and (everything or line.kind in HEADLINES):
            console.print(_styled(line))
    _end(console, result)
    if not result.sound:
        raise SystemExit(1)


def _styled(line: Line) -> Text:
    return Text.assemble((f"{line.at:10.4f}  ", "dim"), (f"{line.kind:12}", STYLES.get(line.kind, "")), line.text)


def _end(console: Console, result: Result) -> None:
    console.print(
        f"\nseed {result.seed}: {result.messages} messages, {result.deliveries} deliveries, {result.faults} faults, "
        f"{result.virtual_s:.1f} virtual seconds, digest {result.digest}"
    )
    if result.sound:
        console.print(Text("Nothing was lost, doubled, out of order or stuck.", "bold green"))
    for violation in result.violations:
        console.print(Text(str(violation), "bold red"))
