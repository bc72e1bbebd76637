"""`postroad sim soak`: many random runs."""

from __future__ import annotations

import json
import os
import sys
import time

import click

from postroad.cli.simulator.seeds import SeedRange
from postroad.sim.soak import Result, Summary
from postroad.sim.soak import soak as run_soak


@click.command()
@click.option("--seeds", type=SeedRange(), default="0:100", show_default=True, help="The seeds A to B - 1, or one seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per seed, then one with the summary.")
@click.option(
    "--workers", type=click.IntRange(1), default=lambda: os.cpu_count() or 1, help="Number of processes.  [default: one per core]"
)
def soak(seeds: range, as_json: bool, workers: int) -> None:
    """Run random seeds of the overlay with every kind of fault, and check every delivery.

    The exit code is 1 if anything was lost, duplicated, out of order or stuck.
    """
    summary, began = Summary(), time.monotonic()
    for result in run_soak(seeds, workers=workers):
        summary.add(result)
        if as_json:
            click.echo(json.dumps(result.line()))
        _complain(result)
        _progress(summary, len(seeds), began)
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)
    if as_json:
        click.echo(json.dumps({"summary": summary.line()}))
    else:
        click.echo(_sentence(summary, time.monotonic() - began))
    if not summary.sound:
        raise SystemExit(1)


def _complain(result: Result) -> None:
    if result.sound:
        return
    click.echo(f"seed {result.seed}: {len(result.violations)} violations; the first: {result.violations[0]}", err=True)
    click.echo(f"  to repeat: {result.command}", err=True)


def _progress(summary: Summary, total: int, began: float) -> None:
    if sys.stderr.isatty():
        spent = time.monotonic() - began
        left = spent / summary.seeds * (total - summary.seeds)
        text = f"\r\033[K{summary.seeds}/{total} seeds, {len(summary.failed)} failed, {left:.0f} s left"
        click.echo(text, err=True, nl=False)


def _sentence(summary: Summary, seconds: float) -> str:
    line = summary.line()
    bad = ", ".join(f"{line[kind]} {kind}" for kind in ("lost", "duplicated", "misordered", "stuck"))
    others = ", ".join(
        f"{line[kind]} {kind}" for kind in ("phantom", "released", "kept", "unbounded", "mistracked", "misreserved", "crashed")
    )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(summary.kinds.items()))
    traits = ", ".join(f"{count:,} {trait}" for trait, count in sorted(summary.traits.items()))
    return (
        f"{summary.seeds} seeds in {seconds:.0f} s: {summary.messages:,} messages, {summary.deliveries:,} deliveries, "
        f"{summary.faults:,} faults of {len(summary.kinds)} kinds in {line['virtual_hours']} simulated hours; "
        f"{summary.converged} of {summary.seeds} runs converged\nfaults: {kinds}\nalso: {traits}\n"
        f"{bad}, {others}\ndigest {line['digest']}"
    )
