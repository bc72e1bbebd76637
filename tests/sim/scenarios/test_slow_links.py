"""Answers about the past that stand in the queue of a slow link for long."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from postroad.core.broker.subscribing.catching_up import CatchingUp
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedConfig


def behind_a_slow_link(monkeypatch: pytest.MonkeyPatch, *, lost_until: float) -> tuple[Overlay, list[float]]:
    """A durable subscriber returns at 20 s and has to catch up; return the times of its requests, which are lost at first."""
    overlay = Overlay(1, config=TrackedConfig(cache_bytes=2_000))
    overlay.brokers(1, 2)
    overlay.link(1, 2, CableProfile(bytes_per_s=8_000.0, backlog_bytes_max=200_000))
    writer, reader = overlay.client("writer", 1), overlay.client("reader", 2)
    text = overlay.filter(everything())
    overlay.at(1.0, partial(reader.follow, text, subscription="kept", name="kept"))
    overlay.at(5.0, reader.crash)
    overlay.at(20.0, reader.start)
    for number in range(60):
        overlay.at(6.0 + number / 20, partial(writer.publish, {"ab"[number % 2]: number}, b"%d" % number))
    asked: list[float] = []
    send = CatchingUp._send

    def watch(self: CatchingUp, *arguments: Any) -> None:
        asked.append(overlay.world.now)
        if overlay.world.now >= lost_until:
            send(self, *arguments)

    monkeypatch.setattr(CatchingUp, "_send", watch)
    return overlay, asked


def test_what_may_wait_in_the_queue_of_a_slow_link_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for every four seconds: where answers took 25 s, they filled the link, for ever (seed 7001121)."""
    overlay, asked = behind_a_slow_link(monkeypatch, lost_until=50.0)
    overlay.run(50.0)
    assert 4 <= len(asked) <= 6
    assert overlay.settle(60.0)
    assert overlay.violations() == []


def test_a_new_route_is_asked_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked before is lost with the link: nobody waits for it any longer."""
    overlay, asked = behind_a_slow_link(monkeypatch, lost_until=40.0)
    overlay.at(41.0, overlay.cable(1, 2).reset)
    overlay.run(44.0)
    assert any(each > 41.0 for each in asked)
    assert overlay.settle(5.0)
    assert overlay.violations() == []
