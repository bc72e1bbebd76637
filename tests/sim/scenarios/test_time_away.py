"""How long a restart keeps messages waiting, processors apart: virtual time passes only on wires and disks."""

from __future__ import annotations

import pytest

from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything

STEP_S = 0.05


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("killed", "within_s"), [((1,), 1.0), ((1, 2, 3), 3.0)])
def test_a_message_arrives_soon_after_brokers_were_killed_and_started(
    seed: int, killed: tuple[int, ...], within_s: float
) -> None:
    """No pause between attempts, no grace and no vote stands between a start and the next delivery."""
    overlay = Overlay(seed)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("writer", 1)
    overlay.client("reader", 3)
    overlay.at(1.0, lambda: overlay.clients["reader"].follow(overlay.filter(everything()), subscription="all"))
    overlay.at(3.0, lambda: overlay.clients["writer"].publish({"n": 1}, b"before"))
    overlay.run(5.0)
    assert overlay.deliveries == 1
    for broker in killed:
        overlay.node(broker).crash()
    for broker in killed:
        overlay.node(broker).start()
    overlay.clients["writer"].publish({"n": 2}, b"after")
    time = 5.0
    while overlay.deliveries < 2:
        time += STEP_S
        assert time <= 5.0 + within_s
        overlay.run(time)
