"""What a broker that lost its files learns from the others before it announces anything."""

from __future__ import annotations

from tests.core.broker.machines import Machines

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.incarnations import BORN_KEY
from postroad.core.protocol.packets import Remembered, pubend_id

PUBEND = pubend_id(1)


def number_at(metadata: dict[str, bytes], key: str) -> int:
    return int.from_bytes(metadata[key], "big")


def test_a_neighbour_that_starts_again_still_tells_of_the_life_before() -> None:
    """It had heard of the new life and could not answer. After its start it knows both lives; only one announced anything."""
    machines = Machines(BrokerConfig(newcomer_wait_s=5.0, has_neighbours=True))
    machines.start(1)
    machines.start(2)
    machines.link(1, 2)
    machines.run(3.0)
    announced = number_at(machines.stop(1), f"horizon/{PUBEND}")

    machines.loses = (Remembered,)
    machines.set_clock_back(1, seconds=100.0)
    returned = machines.start(1)  # with no files
    machines.link(1, 2)
    machines.run(1.0)
    assert f"{BORN_KEY}{PUBEND}" not in returned.metadata, "it waits for word"

    kept = machines.stop(2)
    machines.loses = ()
    machines.start(2, kept, incarnation=2)
    machines.link(1, 2)
    machines.run(1.0)
    assert number_at(returned.metadata, f"{BORN_KEY}{PUBEND}") > announced


def test_a_new_broker_that_is_known_already_had_no_former_life() -> None:
    """Its neighbour heard of this life and of no other: nothing is lost, and it begins at its clock."""
    machines = Machines(BrokerConfig(newcomer_wait_s=5.0, has_neighbours=True))
    machines.loses = (Remembered,)
    machines.start(2)
    new = machines.start(1)
    machines.link(1, 2)
    machines.run(1.0)
    kept = machines.stop(2)
    machines.loses = ()
    machines.start(2, kept, incarnation=2)
    machines.link(1, 2)
    machines.run(1.0)
    assert f"{BORN_KEY}{PUBEND}" in new.metadata
    assert not any(key.startswith("lost/") for key in new.metadata)
