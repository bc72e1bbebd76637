"""`postroad sim topics`: soak the topics service; one JSON line per seed and a summary."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click
import xxhash
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from postroad.cli.simulator.seeds import SeedRange
from postroad.sim.topics.simulation import Outcome, simulate

COUNTS = ("lost", "duplicated", "misordered", "unexpected", "stuck", "leaked")


@click.command()
@click.option("--seeds", type=SeedRange(), default="0:100", show_default=True, help="The seeds A to B - 1, or one seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per seed, then one with the summary.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=max(1, os.cpu_count() or 1),
    help="Number of processes.  [default: one per core]",
)
@click.option(
    "--without-stamps", is_flag=True, help="Merge as the original design does, without clock stamps; messages get lost."
)
@click.option("--without-homes", is_flag=True, help="Let any copy of a topic serve any client; messages get lost.")
@click.option(
    "--without-settling", is_flag=True, help="Delete read messages without asking the other servers; messages get lost."
)
def topics(*, seeds: range, as_json: bool, jobs: int, without_stamps: bool, without_homes: bool, without_settling: bool) -> None:
    """Test the topics service in the simulator with random seeds.

    Each seed draws one to three proxies, one to four servers, clients, and faults: messages lost, doubled and delayed,
    links cut, disks that stall or fail, processes that crash at any instant. Then all faults end, and the messages that
    the clients received are checked. The same seed gives the same digest. The exit code is 1 if anything was lost, duplicated,
    misordered, unexpected, stuck or leaked.
    """
    run = partial(simulate, stamps=not without_stamps, homes=not without_homes, settle=not without_settling)
    total = dict.fromkeys([*COUNTS, "faults", "messages", "received", "merges"], 0)
    kinds: Counter[str] = Counter()
    digest = xxhash.xxh3_64()
    bad: list[int] = []
    for outcome in _progress(_outcomes(run, seeds, jobs), len(seeds)):
        counts = {name: getattr(outcome.verdicts, name) for name in COUNTS}
        facts = {
            "faults": outcome.faults.total(),
            "messages": outcome.messages,
            "received": outcome.received,
            "merges": outcome.merges,
        }
        for name, value in {**counts, **facts}.items():
            total[name] += value
        kinds += outcome.faults
        digest.update(outcome.digest.encode())
        if outcome.verdicts.total:
            bad.append(outcome.seed)
        _tell(outcome, {"seed": outcome.seed, **counts, **facts, "digest": outcome.digest}, as_json=as_json)
    summary = {"seeds": len(seeds), "violating_seeds": len(bad), **total, "digest": digest.hexdigest()}
    by_kind = dict(kinds.most_common())
    if as_json:
        print(json.dumps({**summary, "faults_by_kind": by_kind}))
    else:
        print("  ".join(f"{name} {value}" for name, value in summary.items()))
        print("faults: " + ", ".join(f"{value} {name}" for name, value in by_kind.items()))
    if bad:
        flags = "".join(
            [" --without-stamps" * without_stamps, " --without-homes" * without_homes, " --without-settling" * without_settling]
        )
        sys.stderr.write(f"violations; repeat the first with: postroad sim topics --seeds {bad[0]} --json{flags}\n")
        sys.exit(1)


def _outcomes(run: partial[Outcome], seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=4)


def _progress(outcomes: Iterable[Outcome], count: int) -> Iterator[Outcome]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from outcomes
        return
    columns = (TextColumn("topics"), BarColumn(), MofNCompleteColumn(), TextColumn("seeds"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield from progress.track(outcomes, total=count)


def _tell(outcome: Outcome, line: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        if outcome.verdicts.examples:
            line["examples"] = outcome.verdicts.examples
        print(json.dumps(line))
    elif outcome.verdicts.total:
        print(f"seed {outcome.seed}: " + "; ".join(outcome.verdicts.examples))
