"""`postroad bench`: a quick self-test against a running broker."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click

from postroad.cli.shared import connected, json_option, print_json, url_option
from postroad.client.connection import Client
from postroad.client.subscription import Subscription
from postroad.transport.loops import run

RUN = "postroad_bench"


@dataclass(frozen=True, slots=True)
class Findings:
    """What one run measured. Latencies are from `publish` to its return: the message is on the disk."""

    payload_bytes: int
    durable_p50_ms: float
    durable_p99_ms: float
    published_per_s: float
    delivered_per_s: float
    round_trip_p50_ms: float


@click.command()
@url_option
@json_option
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=2.0, show_default=True, help="How long each part takes.")
@click.option("--payload", type=click.IntRange(0, 1 << 20), default=100, show_default=True, help="Bytes of each payload.")
def bench(urls: tuple[str, ...], as_json: bool, seconds: float, payload: int) -> None:
    """Measure a running broker from here: latency of durable publishing, rates of publishing and delivery.

    The messages have the attribute `postroad_bench` and stay in the log as long as all others; subscribers without a filter get
    them. For comparisons, use the benchmarks of the repository: this is one client on one connection.
    """
    say: Callable[[str], None] = (lambda _: None) if as_json else (lambda text: click.echo(text, err=True))
    findings = run(_bench(urls, seconds, bytes(payload), say))
    if as_json:
        print_json(asdict(findings))
        return
    click.echo(f"publish, durable     p50 {findings.durable_p50_ms:.2f} ms, p99 {findings.durable_p99_ms:.2f} ms, one at a time")
    click.echo(f"publish to receive   p50 {findings.round_trip_p50_ms:.2f} ms, one at a time")
    click.echo(f"published            {findings.published_per_s:,.0f} messages/s of {payload} bytes, durable")
    click.echo(f"delivered            {findings.delivered_per_s:,.0f} messages/s to one subscriber meanwhile")


async def _bench(urls: tuple[str, ...], seconds: float, payload: bytes, say: Callable[[str], None]) -> Findings:
    name = secrets.token_hex(8)
    async with connected(urls, name="postroad bench") as client, connected(urls, name="postroad bench") as reader:
        received = await reader.subscribe(f"{RUN} = '{name}'")
        say(f"one message at a time, {seconds:g} s")
        durable, round_trips = await _one_by_one(client, received, name, payload, seconds)
        say(f"as many as possible, {seconds:g} s")
        published, delivered = await _many(client, received, name, payload, seconds)
    return Findings(
        len(payload), _percentile(durable, 50), _percentile(durable, 99), published, delivered, _percentile(round_trips, 50)
    )


async def _one_by_one(
    client: Client, received: Subscription, name: str, payload: bytes, seconds: float
) -> tuple[list[float], list[float]]:
    durable: list[float] = []
    round_trips: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        getting = asyncio.ensure_future(received.get())
        await client.publish({RUN: name}, payload)
        durable.append(time.perf_counter() - begun)
        await getting
        round_trips.append(time.perf_counter() - begun)
    return durable, round_trips


async def _many(client: Client, received: Subscription, name: str, payload: bytes, seconds: float) -> tuple[float, float]:
    publisher = client.publisher()
    begun = time.perf_counter()
    count = 0

    async def count_received() -> float:
        seen = 0
        while not (count_known.is_set() and seen >= count):
            seen += len(await received.fetch(1000, timeout=0.5))
        return seen / (time.perf_counter() - begun)

    count_known = asyncio.Event()
    counting = asyncio.create_task(count_received())
    while time.perf_counter() < begun + seconds:
        for _ in range(100):
            await publisher.publish({RUN: name}, payload)
        count += 100
    await publisher.flush(60)
    published = count / (time.perf_counter() - begun)
    count_known.set()
    return published, await counting


def _percentile(seconds: list[float], percent: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1000
