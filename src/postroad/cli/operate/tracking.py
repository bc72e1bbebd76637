"""`postroad tracking`: parameters of tracking, from what is asked of it and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from postroad.tracking.histories.tuning import Plan, Wish
from postroad.tracking.histories.tuning import plan as make_plan

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def tracking() -> None:
    """Choose the parameters of message tracking."""


def _options(function: F) -> F:
    options = [
        click.option(
            "--efpp",
            type=float,
            required=True,
            help="Accepted probability that a history reports a message that it does not contain.",
        ),
        click.option("--rate", type=float, required=True, help="Peak rate of the busiest history, in messages per second."),
        click.option(
            "--matching-set",
            type=int,
            default=2,
            show_default=True,
            help="Largest number of Bloom filters that cover one timestamp (w + 1).",
        ),
        click.option("--bits", "m", type=int, help="Bits of a Bloom filter (m)."),
        click.option("--hashes", "k", type=int, help="Hash functions (k)."),
        click.option("--capacity", "n", type=int, help="Messages in a full Bloom filter (n)."),
        click.option("--persistence-ms", type=float, help="Time after which Bloom filters are stored (T_p)."),
        click.option(
            "--skew-ms", type=float, help="Accepted difference between the clocks of publishers and of the broker (T_s)."
        ),
        click.option(
            "--jitter-ms",
            type=float,
            default=0.0,
            show_default=True,
            help="Difference between the slowest and the fastest path (T_j).",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@tracking.command()
@_options
def plan(*, as_json: bool, **given: Any) -> None:
    """Compute the parameters that are not given, and check all of them.

    The exit code is 1 if an inequality of the theory does not hold. The output says which one, by how much, and how to fix it.
    """
    _answer(make_plan(Wish(**given)), as_json=as_json)


@tracking.command(short_help="Check parameters that you give.")
@_options
def check(*, as_json: bool, **given: Any) -> None:
    """Check given parameters: --bits, --hashes, --capacity, --persistence-ms and --skew-ms.

    The exit code is 1 if an inequality of the theory does not hold. The output says which one, by how much, and how to fix it.
    """
    names = {"m": "--bits", "k": "--hashes", "n": "--capacity", "persistence_ms": "--persistence-ms", "skew_ms": "--skew-ms"}
    missing = [option for name, option in names.items() if given[name] is None]
    if missing:
        raise click.UsageError(f"give {', '.join(missing)} too, or let `postroad tracking plan` compute the missing values")
    _answer(make_plan(Wish(**given)), as_json=as_json)


def _answer(found: Plan, *, as_json: bool) -> None:
    click.echo(json.dumps(as_document(found), indent=2) if as_json else as_text(found))
    if found.broken:
        sys.exit(1)


def as_document(found: Plan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {
        "m": found.m,
        "k": found.k,
        "n": found.n,
        "matching_set": found.matching_set,
        "fpp": found.fpp,
        "efpp": found.efpp,
        "efpp_asked": found.wish.efpp,
        "bits_per_message": found.bits_per_message,
        "bytes_per_message": found.bits_per_message / 8,
        "stored_bits_per_message": found.stored_bits_per_message,
        "skew_tolerance_ms": found.skew_ms,
        "skew_tolerance_ms_max": found.skew_ms_max,
        "jitter_ms": found.wish.jitter_ms,
        "persistence_interval_ms": found.persistence_ms,
        "fill_ms": found.fill_ms,
        "lifetime_min_ms": found.lifetime_ms,
        "rate": found.wish.rate,
        "holds": not found.broken,
        "broken": [
            {
                "name": fault.name,
                "inequality": fault.inequality,
                "left": fault.left,
                "right": fault.right,
                "unit": fault.unit,
                "repairs": list(fault.repairs),
            }
            for fault in found.broken
        ],
    }


def as_text(found: Plan) -> str:
    """Return the plan as a person reads it."""
    w, jitter_ms, bits = found.matching_set - 1, found.wish.jitter_ms, found.bits_per_message
    size = _bytes(found.m / 8)
    rows = {
        "bloom": f"m = {found.m:,} bits ({size}), k = {found.k} hash functions, n = {found.n:,} messages",
        "error": f"fpp = {found.fpp:.3g} per bloom, efpp = {found.efpp:.3g} with matching sets of {found.matching_set}",
        "asked": f"efpp = {found.wish.efpp:.3g}",
        "storage": f"{bits:.2f} bits = {bits / 8:.2f} bytes per message and history{_partly(found)}",
        "memory": f"{_bytes(found.m / 4)} per history at most: bits, and ids that are not hashed yet",
        "time to fill": f"T_f = {found.fill_ms:,.0f} ms at {found.wish.rate:,.0f} messages per second",
        "persistence": f"T_p = {found.persistence_ms:,.0f} ms; a crash may lose the tracks of this time",
        "shortest lifetime": f"T_n = min(T_f, T_p) = {found.lifetime_ms:,.0f} ms",
        "skew tolerance": f"T_s = {found.skew_ms:,.0f} ms, with a jitter T_j = {jitter_ms:,.0f} ms",
        "overlap": f"2 T_s + T_j = {2 * found.skew_ms + jitter_ms:,.0f} ms, w T_n = {w * found.lifetime_ms:,.0f} ms",
    }
    lines = [f"{name:<19} {value}" for name, value in rows.items()]
    lines += [f"FAILS               {fault}" for fault in found.broken]
    if not found.broken:
        lines.append("holds               equations (1) and (2), " + ("Corollary 2" if found.wish.jitter_ms else "Theorem 1"))
    return "\n".join(lines)


def _partly(found: Plan) -> str:
    stored = found.stored_bits_per_message
    if stored <= found.bits_per_message * 1.001:
        return ""
    return f"; T_p < T_f stores blooms partly full: {stored:.2f} bits = {stored / 8:.2f} bytes"


def _bytes(count: float) -> str:
    return f"{count / 1024:,.4g} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.4g} MiB"
