"""The picture of the overlay that all pages share, taken about once a second while somebody looks.

Every broker is asked how it is, over the overlay. Two pictures in a row give rates. With many brokers, a part of them is asked in
each round, so the work per second is bounded; the page says how old each broker's figures are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from postroad.client.connection import Client
from postroad.core.protocol.packets import pubend_broker
from postroad.core.protocol.status import BrokerReport, LinkReport, StreamReport
from postroad.errors import PostroadError

log = logging.getLogger("postroad.console")

PERIOD_S: Final = 1.0
ASKED_PER_ROUND: Final = 64  # brokers; the others' turn comes in the next rounds
HISTORY: Final = 120  # rounds that the charts go back
MANY_BROKERS: Final = 100  # from here on a picture is sent less often
MANY_PERIOD_S: Final = 5.0


@dataclass(slots=True)
class _Known:
    """The last two reports of one broker."""

    report: BrokerReport | None = None
    before: BrokerReport | None = None
    failed: str = ""  # why the last question had no answer

    def rate(self, read: Callable[[BrokerReport], float]) -> float:
        """Return the increase per second of a total between the last two reports."""
        if self.report is None or self.before is None or self.report.started_ms != self.before.started_ms:
            return 0.0
        spent_ms = self.report.wall_ms - self.before.wall_ms
        return max(0.0, (read(self.report) - read(self.before)) * 1000 / spent_ms) if spent_ms > 0 else 0.0


@dataclass(slots=True)
class _Point:
    """One round, for the charts."""

    at_ms: int
    published_per_s: float
    bytes_per_s: float
    lag_ms: int


@dataclass(slots=True)
class Picture:
    """What is known of the overlay. `watch` yields it as JSON while it is wanted; nobody is asked otherwise."""

    client: Client
    home: int
    _known: dict[int, _Known] = field(default_factory=dict)
    _neighbours: dict[int, list[int] | None] = field(default_factory=dict)
    _history: deque[_Point] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _next: int = 0  # where the next round goes on among many brokers
    _watchers: int = 0
    _task: asyncio.Task[None] | None = None
    _encoded: bytes = b""
    _taken: asyncio.Condition = field(default_factory=asyncio.Condition)
    _rounds: int = 0

    async def watch(self) -> AsyncIterator[bytes]:
        """Yield a picture at once and then each new one."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._take_pictures())
        seen = 0
        try:
            while True:
                async with self._taken:
                    while self._rounds == seen:
                        await self._taken.wait()
                    seen = self._rounds
                yield self._encoded
        finally:
            self._watchers -= 1

    async def watch_nothing(self) -> AsyncIterator[bytes]:
        """Yield pictures as `watch` does, for those who may not know what is in them."""
        while True:
            yield msgspec.json.encode(Picture(self.client, self.home).describe())
            await asyncio.sleep(PERIOD_S)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _take_pictures(self) -> None:
        """Ask until nobody has looked for a round."""
        while self._watchers:
            began = time.monotonic()
            try:
                await self._ask()
            except PostroadError as error:
                log.debug("the overlay could not be asked: %s", error)
            self._encoded = msgspec.json.encode(self.describe())
            async with self._taken:
                self._rounds += 1
                self._taken.notify_all()
            period_s = MANY_PERIOD_S if len(self._known) > MANY_BROKERS else PERIOD_S
            await asyncio.sleep(max(0.05, period_s - (time.monotonic() - began)))
        self._task = None

    async def _ask(self) -> None:
        self._neighbours = await self.client.brokers()
        for broker in self._neighbours:
            self._known.setdefault(broker, _Known())
        for broker in [each for each in self._known if each not in self._neighbours]:
            del self._known[broker]
        await asyncio.gather(*(self._ask_one(broker) for broker in self._due()))
        points = [(known.rate(_sum_published), known.rate(_sum_carried)) for known in self._known.values()]
        now_ms = time.time_ns() // 1_000_000
        lag_ms = max((_lag_of(known.report) for known in self._known.values() if not known.failed), default=0)
        self._history.append(_Point(now_ms, sum(each[0] for each in points), sum(each[1] for each in points), lag_ms))

    def _due(self) -> list[int]:
        """Return whom to ask in this round."""
        everyone = sorted(self._known)
        if len(everyone) <= ASKED_PER_ROUND:
            return everyone
        begin = self._next % len(everyone)
        self._next = begin + ASKED_PER_ROUND
        return [*everyone[begin:], *everyone[:begin]][:ASKED_PER_ROUND]

    async def _ask_one(self, broker: int) -> None:
        known = self._known[broker]
        try:
            report = await self.client.status(broker)
        except PostroadError as error:
            known.failed = str(error)
        else:
            known.before, known.report, known.failed = known.report, report, ""

    # --- what pages get ---

    def describe(self) -> dict[str, Any]:
        """Return the picture as plain values."""
        return {
            "at_ms": time.time_ns() // 1_000_000,
            "home": self.home,
            "brokers": [self._describe_broker(broker, known) for broker, known in sorted(self._known.items())],
            "links": self._describe_links(),
            "pubends": self._describe_pubends(),
            "history": [
                (point.at_ms, round(point.published_per_s, 2), round(point.bytes_per_s), point.lag_ms) for point in self._history
            ],
        }

    def report(self, broker: int) -> BrokerReport | None:
        known = self._known.get(broker)
        return None if known is None else known.report

    def _describe_broker(self, broker: int, known: _Known) -> dict[str, Any]:
        report = known.report
        described: dict[str, Any] = {
            "id": broker,
            "name": f"broker-{broker}" if report is None else report.name,
            "up": report is not None and not known.failed,
            "reason": known.failed,
            "neighbours": self._neighbours.get(broker) or [],
        }
        if report is not None:
            figures = report.figures
            described |= {
                "software": report.software,
                "address": report.address,
                "started_ms": report.started_ms,
                "heard_ms": report.wall_ms,
                "published_per_s": round(known.rate(_sum_published), 2),
                "subscriptions": report.subscription_count,
                "clients": int(figures.get("clients", 0)),
                "backlog_bytes": int(figures.get("backlog_bytes", 0)),
                "cache_bytes": int(figures.get("cache_bytes", 0)),
                "lag_ms": _lag_of(report),
                "disk_full": bool(figures.get("disk_full", 0)),
                "notices": report.notices,
            }
        return described

    def _describe_links(self) -> list[dict[str, Any]]:
        """Describe each link once. It is up when both ends, or the one that could be asked, report it."""
        pairs: dict[tuple[int, int], dict[str, Any]] = {}
        for broker, known in sorted(self._known.items()):
            for link in known.report.links if known.report is not None and not known.failed else []:
                low, high = sorted((broker, link.broker))
                found = pairs.setdefault((low, high), {"a": low, "b": high, "up": True, "to": {}})
                found["cost"] = link.cost
                found["to"][str(link.broker)] = {
                    "bytes_per_s": round(known.rate(lambda report, to=link.broker: _sum_sent_to(report, to))),  # type: ignore[misc]
                    "backlog_bytes": link.backlog_bytes,
                    "dropped_frames": link.dropped_frames,
                    "limit": link.bandwidth_bytes_per_s,
                }
        for broker, neighbours in self._neighbours.items():
            for other in neighbours or []:
                low, high = sorted((broker, other))
                pairs.setdefault((low, high), {"a": low, "b": high, "up": False, "to": {}})
        return list(pairs.values())

    def _describe_pubends(self) -> list[dict[str, Any]]:
        """Describe each stream at its own broker, with the broker where it is furthest behind."""
        described: dict[int, dict[str, Any]] = {}
        for broker, known in self._known.items():
            for stream in known.report.streams if known.report is not None else []:
                if stream.is_hosted:
                    described.setdefault(stream.pubend, _new_pubend(stream.pubend)).update(_describe_hosted(stream))
                    rate = known.rate(lambda report, of=stream.pubend: _rows_of(report, of))  # type: ignore[misc]
                    described[stream.pubend]["published_per_s"] = round(rate, 2)
                elif stream.engaged and not known.failed:
                    found = described.setdefault(stream.pubend, _new_pubend(stream.pubend))
                    if stream.lag_ms > found["lag_ms"]:
                        found["lag_ms"], found["lag_broker"] = stream.lag_ms, broker
                    found["recovering"] += [broker] if stream.is_recovering else []
        return [described[pubend] for pubend in sorted(described)]


def _new_pubend(pubend: int) -> dict[str, Any]:
    return {
        "pubend": pubend,
        "broker": pubend_broker(pubend),
        "published_per_s": 0.0,
        "published": 0,
        "waiting": 0,
        "rate_limit": 0.0,
        "throttled_since_ms": 0,
        "throttled_by": 0,
        "lag_ms": 0,
        "lag_broker": 0,
        "recovering": [],
    }


def _describe_hosted(stream: StreamReport) -> dict[str, Any]:
    return {
        "published": stream.published_rows,
        "waiting": stream.waiting_rows,
        "rate_limit": round(stream.rate_limit, 2),
        "throttled_since_ms": stream.throttled_since_ms,
        "throttled_by": stream.throttled_by,
    }


def _lag_of(report: BrokerReport | None) -> int:
    return 0 if report is None else max((stream.lag_ms for stream in report.streams), default=0)


def _sum_published(report: BrokerReport) -> float:
    return sum(stream.published_rows for stream in report.streams)


def _sum_carried(report: BrokerReport) -> float:
    return sum(link.sent_bytes for link in report.links)


def _sum_sent_to(report: BrokerReport, broker: int) -> float:
    link: LinkReport | None = next((each for each in report.links if each.broker == broker), None)
    return 0.0 if link is None else link.sent_bytes


def _rows_of(report: BrokerReport, pubend: int) -> float:
    return sum(stream.published_rows for stream in report.streams if stream.pubend == pubend)
