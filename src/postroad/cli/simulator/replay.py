"""`postroad sim replay` and `postroad sim shrink`: the story of one seed, and the smallest that still fails."""

from __future__ import annotations

from typing import Final

import click
from rich.console import Console
from rich.text import Text

from postroad.sim.faults import Faults
from postroad.sim.overlay import Overlay
from postroad.sim.shrinking import shrink as shrink_seed
from postroad.sim.soak import play
from postroad.sim.violation_story import explain
from postroad.sim.workload import Shape
from postroad.sim.world import Line

# What a reader wants to see first; the rest comes with --all.
HEADLINES: Final = frozenset(
    {"fault", "start", "stop", "crash", "client", "subscribe", "unsubscribe", "phase", "gap", "refused", "violation", "crashed"}
)
STYLES: Final = {
    "fault": "bold yellow",
    "crash": "bold red",
    "phase": "bold cyan",
    "gap": "magenta",
    "crashed": "bold red",
    "so": "cyan",
}
EXPLAINED: Final = 3  # violations; the rest is only named


class Names(click.ParamType[tuple[str, ...]]):
    """Names or numbers separated by commas; `none` for none."""

    name = "A,B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        del param, ctx
        if isinstance(value, tuple):
            return value
        return tuple(part for part in str(value).split(",") if part and part != "none")


@click.command()
@click.option("--seed", type=click.IntRange(0), required=True, help="Number of the seed.")
@click.option("--all", "everything", is_flag=True, help="Also show every delivery, activation and refusal.")
@click.option("--from", "since", type=float, default=0.0, help="Show the events from this virtual second on.")
@click.option("--faults", type=Names(), default=None, help="Inject only these faults, by number, as `shrink` prints them.")
@click.option("--clients", type=Names(), default=None, help="Run only these clients.")
def replay(seed: int, everything: bool, since: float, faults: tuple[str, ...] | None, clients: tuple[str, ...] | None) -> None:
    """Run one seed again, show its events, and explain each violation: its cause, and how far the message came."""
    if faults is not None and not all(each.isdigit() for each in faults):
        raise click.BadParameter("faults are numbers separated by commas", param_hint="--faults")
    shape = Shape(faults=None if faults is None else tuple(map(int, faults)), clients=clients)
    overlay, struck = play(seed, shape, story=True)
    console = Console(highlight=False, soft_wrap=True)
    for line in overlay.world.story or ():
        if line.at >= since and (everything or line.kind in HEADLINES):
            console.print(_style(line))
    if not _end(console, overlay, struck):
        raise SystemExit(1)


@click.command()
@click.option("--seed", type=click.IntRange(0), required=True, help="Number of a seed that fails.")
def shrink(seed: int) -> None:
    """Remove faults and clients of a failing seed, one after the other, as long as it fails in the same way."""
    found = shrink_seed(seed, report=lambda text: click.echo(text, err=True))
    if found is None:
        click.echo(f"seed {seed} does not fail")
        return
    click.echo(f"{found.violation}")
    click.echo(
        f"{len(found.faults)} of {found.faults_before} faults and {len(found.clients)} of {found.clients_before} clients "
        f"are left after {found.runs} runs; to replay it: {found.command}"
    )


def _style(line: Line) -> Text:
    return Text.assemble((f"{line.at:10.4f}  ", "dim"), (f"{line.kind:14}", STYLES.get(line.kind, "")), line.text)


def _end(console: Console, overlay: Overlay, faults: Faults) -> bool:
    """Tell what came of the run; return whether it was sound."""
    violations = overlay.violations()
    console.print(
        f"\nseed {overlay.world.seed}: {overlay.messages} messages, {overlay.deliveries} deliveries, {faults.total} faults, "
        f"{overlay.world.now:.1f} virtual seconds, digest {overlay.world.digest}"
    )
    if not violations:
        console.print(Text("Nothing was lost, duplicated, out of order or stuck.", "bold green"))
    for violation in violations[:EXPLAINED]:
        console.print(Text(f"\nWhat led to this ({violation.checker}):", "bold"))
        for line in explain(violation, overlay.history, overlay.world.story or ()):
            console.print(_style(line))
    for violation in violations[EXPLAINED:]:
        console.print(Text(str(violation), "bold red"))
    return not violations
