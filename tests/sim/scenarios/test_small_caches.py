"""Caches that are smaller than what a recovery brings: gaps close all the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedConfig


@pytest.mark.parametrize("rule", [Rule.NONE, Rule.PAPER, Rule.IMPROVED])
def test_a_recovery_whose_answers_displace_each_other_ends(rule: Rule) -> None:
    """A window of NACKs once asked for more than the cache holds, and again only after the longest timeouts, for ever."""
    config = TrackedConfig(cache_bytes=1_500, congestion=CongestionSettings(rule, receive_window_ms=1_000))
    overlay = Overlay(1, config=replace(config, silence_s=0.2))
    overlay.brokers(1, 2)
    cable = overlay.link(1, 2, CableProfile(bytes_per_s=20e3, backlog_bytes_max=4_000))
    reader, writer = overlay.client("reader", 2), overlay.client("writer", 1)
    text = overlay.filter(everything())
    overlay.at(0.2, lambda: reader.follow(text, subscription="all"))
    for number in range(120):
        overlay.at(1.0 + number / 40, partial(writer.publish, {"n": number}, f"{number}:".encode() + bytes(1_500)))
    overlay.at(1.5, cable.reset)
    overlay.run(5.0)
    overlay.heal()
    assert overlay.settle(60.0)
    assert overlay.violations() == []


@pytest.mark.parametrize("rule", [Rule.PAPER, Rule.IMPROVED])
def test_a_subscription_from_the_earliest_message_comes_to_the_present(rule: Rule) -> None:
    """It begins at tick 0, decades ago. In pieces of at most a day it once did not arrive (seed 4000491)."""
    overlay = Overlay(1, config=TrackedConfig(cache_bytes=1_500, keep_s=60.0, congestion=CongestionSettings(rule)))
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    reader, writer = overlay.client("reader", 2), overlay.client("writer", 1)
    text = overlay.filter(everything())
    for number in range(20):
        overlay.at(1.0 + number / 10, partial(writer.publish, {"n": number}, f"{number}:".encode() + bytes(500)))
    overlay.at(4.0, lambda: reader.follow(text, subscription="all", earliest=True))
    overlay.run(5.0)
    overlay.heal()
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert overlay.deliveries == 20
