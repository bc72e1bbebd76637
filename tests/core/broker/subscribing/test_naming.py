"""A durable name is taken when a majority of the known brokers have stored who takes it."""

from __future__ import annotations

import pytest
from tests.core.broker.machines import Machine, Machines

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.subscribing.durable import DURABLE_KEY
from postroad.core.broker.subscribing.naming import NAME_KEY
from postroad.core.protocol.packets import (
    DurableHome,
    Gap,
    HomeQuery,
    NameAnswer,
    NameRelease,
    NameReserve,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    pubend_id,
)
from postroad.errors import DurableBusyError, DurableElsewhereError

LINK = 5


def overlay(count: int, config: BrokerConfig | None = None) -> Machines:
    """Return brokers in a full mesh that know each other."""
    machines = Machines(config or BrokerConfig(silence_s=0.2))
    for number in range(1, count + 1):
        machines.start(number)
        for other in range(1, number):
            machines.link(other, number)
    machines.run(1.0)
    return machines


def subscribe(machines: Machines, number: int, name: str = "orders", link: int = LINK) -> None:
    machines.client(number, link)
    machines.give(number, Subscribe(1, "x > 1", name), link=link, request=3)


def active(node: Machine) -> bool:
    return bool(node.told(Subscribed))


def refusals(node: Machine) -> list[type]:
    return [type(error) for _, error in node.refused]


def cut_off(machines: Machines, numbers: set[int]) -> None:
    for one in sorted(machines.nodes):
        for two in sorted(machines.nodes):
            if one < two and (one in numbers) != (two in numbers):
                machines.unlink(one, two)


def homes(machines: Machines, name: str = "orders") -> set[int]:
    return {node.broker._durables.homes[name].broker for node in machines.nodes.values()}


def reservations(machines: Machines) -> list[str]:
    return [key for node in machines.nodes.values() for key in node.metadata if key.startswith(NAME_KEY)]


@pytest.mark.parametrize(
    ("brokers", "down", "possible"), [(1, 0, True), (2, 1, False), (3, 1, True), (3, 2, False), (5, 2, True)]
)
def test_a_new_name_needs_a_majority_of_the_known_brokers(brokers: int, down: int, possible: bool) -> None:
    """One broker of three under repair stops nobody; of two brokers both are needed."""
    machines = overlay(brokers)
    for number in range(brokers - down + 1, brokers + 1):
        machines.stop(number)
    machines.run(0.5)
    subscribe(machines, 1)
    machines.run(6.0)
    node = machines.nodes[1]
    assert active(node) == possible
    assert refusals(node) == ([] if possible else [DurableElsewhereError])
    assert not reservations(machines), "the home was announced, or the creator let go"


def test_the_refusal_says_who_is_missing() -> None:
    """The operator reads which brokers did not answer and how many are needed."""
    machines = overlay(3)
    machines.stop(2)
    machines.stop(3)
    subscribe(machines, 1)
    machines.run(6.0)
    text = str(machines.nodes[1].refused[0][1])
    assert "2 of the 3 known brokers" in text
    assert "[2, 3]" in text


def test_a_vote_is_stored_before_it_counts() -> None:
    """Nobody is told that a name is granted before the reservation is on disk, the creator's own included."""
    machines = overlay(3)
    machines.writes_finish = False
    subscribe(machines, 1)
    assert not machines.nodes[1].broker._durables.here
    assert (
        sum(any(key == NAME_KEY + "orders" for key, _ in o.changes) for n in machines.nodes.values() for o in n.unfinished) == 3
    )
    machines.writes_finish = True
    machines.finish_writes()
    machines.run(1.0)
    assert active(machines.nodes[1])


@pytest.mark.parametrize("brokers", [2, 3, 4, 5])
def test_of_two_creators_at_once_one_wins(brokers: int) -> None:
    """Both ask at the same moment, with their votes on the way; the other is told that the name is taken."""
    machines = overlay(brokers)
    last = brokers
    machines.writes_finish = False
    subscribe(machines, 1)
    subscribe(machines, last)
    machines.writes_finish = True
    machines.finish_writes()
    machines.run(4.0)
    assert sorted((active(machines.nodes[1]), active(machines.nodes[last]))) == [False, True]
    assert DurableBusyError in refusals(machines.nodes[1]) + refusals(machines.nodes[last])
    assert len(homes(machines)) == 1


def test_two_creators_on_both_sides_of_a_partition_meet() -> None:
    """The side with the majority creates the name; the other is refused, and after the partition it moves there."""
    machines = overlay(5)
    cut_off(machines, {1, 2})
    machines.run(0.5)
    subscribe(machines, 1)
    subscribe(machines, 5)
    machines.run(6.0)
    assert (active(machines.nodes[1]), active(machines.nodes[5])) == (False, True)
    assert refusals(machines.nodes[1]) == [DurableElsewhereError]
    machines.leave(5, LINK)
    machines.link(2, 3)
    machines.run(1.0)
    subscribe(machines, 1, link=LINK + 1)
    machines.run(3.0)
    assert active(machines.nodes[1])
    assert homes(machines) == {1}


def test_a_creator_that_crashes_midway_blocks_the_name_for_nobody() -> None:
    """Its reservations end when somebody asks it after its restart, or when it is retired."""
    machines = overlay(3)
    machines.loses = (DurableHome,)
    subscribe(machines, 1)
    disk = machines.stop(1)
    disk = {key: value for key, value in disk.items() if not key.startswith(DURABLE_KEY)}  # it had not stored the record
    machines.loses = ()
    subscribe(machines, 2)
    machines.run(6.0)
    assert refusals(machines.nodes[2]) == [DurableElsewhereError], "it may have won"
    machines.start(1, disk, incarnation=2)
    machines.link(1, 2)
    machines.run(0.5)
    subscribe(machines, 2, link=LINK + 1)
    machines.run(3.0)
    assert active(machines.nodes[2])


def test_a_retired_broker_has_no_vote_and_no_reservation() -> None:
    """A broker that is gone for good counts neither as a member nor as a creator.

    What it created may have been in use, though nobody heard that: the client of the next creation is told a gap.
    """
    machines = overlay(3)
    machines.loses = (DurableHome,)
    subscribe(machines, 1)
    machines.stop(1)
    machines.loses = ()
    disks = {number: machines.stop(number) for number in (2, 3)}
    again = Machines(BrokerConfig(silence_s=0.2, retired=(1,)))
    for number, disk in disks.items():
        again.start(number, disk, incarnation=2)
    again.link(2, 3)
    again.run(1.0)
    subscribe(again, 2)
    again.run(1.0)
    assert active(again.nodes[2])
    assert {packet.pubend for packet in again.nodes[2].told(Gap) if isinstance(packet, Gap)} == {pubend_id(2), pubend_id(3)}


def return_without_files(machines: Machines, number: int) -> None:
    machines.stop(number)
    machines.configs[number] = BrokerConfig(silence_s=0.2, replaces=True)
    machines.start(number)
    for other in machines.nodes:
        if other != number:
            machines.link(number, other)
    machines.run(1.0)


def test_a_creator_that_lost_its_files_may_have_created_the_name_before() -> None:
    """Nobody heard of it, but a voter holds the reservation of its former life: the client is told a gap."""
    machines = overlay(3)
    machines.loses = (DurableHome,)
    subscribe(machines, 1)
    machines.loses = ()
    return_without_files(machines, 1)
    subscribe(machines, 1)
    machines.run(1.0)
    node = machines.nodes[1]
    assert active(node)
    assert pubend_id(2) in {packet.pubend for packet in node.told(Gap) if isinstance(packet, Gap)}


def test_a_second_attempt_of_the_same_life_says_nothing_of_a_former_one() -> None:
    """The reservation of the first was not released, because that word was lost."""
    machines = overlay(3)
    return_without_files(machines, 1)
    machines.loses = (NameAnswer, NameRelease)
    subscribe(machines, 1)
    machines.run(6.0)
    assert refusals(machines.nodes[1]) == [DurableElsewhereError]
    machines.loses = ()
    subscribe(machines, 1, link=LINK + 1)
    machines.run(1.0)
    assert active(machines.nodes[1])
    assert not machines.nodes[1].told(Gap)


def test_the_vote_of_a_broker_that_lost_its_files_needs_all_who_lost_none() -> None:
    """It had granted the name, and forgot that. With one that never heard of the name it was a majority."""
    machines = overlay(3)
    cut_off(machines, {3})
    subscribe(machines, 2)
    machines.run(1.0)
    assert active(machines.nodes[2])
    cut_off(machines, {2})
    machines.stop(1)
    machines.configs[1] = BrokerConfig(silence_s=0.2, replaces=True)
    machines.start(1)
    machines.link(1, 3)
    machines.run(1.0)
    subscribe(machines, 3)
    machines.run(6.0)
    assert refusals(machines.nodes[3]) == [DurableElsewhereError]
    assert "lost their files" in str(machines.nodes[3].refused[0][1])


def test_a_name_that_exists_and_was_not_heard_of_is_found() -> None:
    """Word of it was lost on the way to one broker: another one's vote says where its home is."""
    machines = overlay(3)
    machines.loses = (DurableHome,)
    subscribe(machines, 1)
    machines.run(1.0)
    machines.leave(1, LINK)
    machines.run(0.5)
    machines.loses = ()
    assert "orders" not in machines.nodes[3].broker._durables.homes
    subscribe(machines, 3)
    machines.run(3.0)
    assert active(machines.nodes[3])
    assert homes(machines) == {3}
    assert "orders" not in machines.nodes[1].broker._durables.here


def test_a_forgotten_name_can_be_used_again() -> None:
    """By anybody, under a version above that of its former life."""
    machines = overlay(3)
    subscribe(machines, 1)
    machines.run(1.0)
    machines.give(1, Unsubscribe(1, forget=True), link=LINK, request=4)
    machines.run(1.0)
    assert homes(machines) == {0}
    subscribe(machines, 3)
    machines.run(1.0)
    assert active(machines.nodes[3])
    assert homes(machines) == {3}


def test_a_name_whose_home_is_not_known_here_is_not_deleted() -> None:
    """Word of the home was lost: the client hears that nothing was deleted, and the subscription stays."""
    machines = overlay(3)
    machines.loses = (DurableHome,)
    subscribe(machines, 1)
    machines.run(1.0)
    machines.leave(1, LINK)
    machines.loses = (DurableHome, NameReserve, HomeQuery)
    subscribe(machines, 3)
    machines.give(3, Unsubscribe(1, forget=True), link=LINK, request=4)
    assert refusals(machines.nodes[3]) == [DurableElsewhereError]
    assert not machines.nodes[3].told(Unsubscribed)
    assert "orders" in machines.nodes[1].broker._durables.here


def test_a_deletion_is_confirmed_when_it_is_on_disk() -> None:
    """A broker that crashes before that is the home again."""
    machines = overlay(1)
    subscribe(machines, 1)
    machines.run(1.0)
    machines.writes_finish = False
    machines.give(1, Unsubscribe(1, forget=True), link=LINK, request=4)
    assert not machines.nodes[1].told(Unsubscribed)
    machines.writes_finish = True
    machines.finish_writes()
    assert machines.nodes[1].told(Unsubscribed) == [Unsubscribed(1)]


def test_a_broker_that_appears_during_a_vote_has_one() -> None:
    """The majority is counted among the brokers that are known when the answer comes."""
    machines = overlay(3)
    machines.stop(3)
    machines.loses = (NameReserve,)
    subscribe(machines, 1)
    for number in (4, 5):
        machines.start(number)
        machines.link(2, number)
    machines.unlink(1, 2)
    machines.run(0.5)
    machines.loses = ()
    machines.run(6.0)
    assert not active(machines.nodes[1])


def test_a_client_that_gives_up_leaves_no_reservation() -> None:
    """Its connection is lost while the vote is under way."""
    machines = overlay(3)
    machines.writes_finish = False
    subscribe(machines, 1)
    machines.leave(1, LINK)
    machines.writes_finish = True
    machines.finish_writes()
    machines.run(2.0)
    assert not reservations(machines)
    subscribe(machines, 2)
    machines.run(1.0)
    assert active(machines.nodes[2])


def test_a_reservation_outlives_a_restart_and_an_old_release() -> None:
    """A vote counts until the name has a home or its creator lets go of this very attempt."""
    machines = overlay(3)
    reserve = NameReserve(2, 3, 8, "orders", 70, 0)
    machines.give(2, reserve, link=next(iter(machines.nodes[2].links)))
    machines.give(2, NameRelease(2, 3, 8, "orders", 69), link=next(iter(machines.nodes[2].links)))
    disk = machines.stop(2)
    assert NAME_KEY + "orders" in disk
    machines.stop(3)
    machines.start(2, disk, incarnation=2)
    machines.link(1, 2)
    machines.run(0.5)
    subscribe(machines, 1)
    machines.run(6.0)
    assert refusals(machines.nodes[1]) == [DurableElsewhereError]
    assert pubend_id(1) in machines.nodes[1].broker._pubends


def test_a_name_whose_home_has_not_answered_is_not_deleted() -> None:
    """The home may serve a client, or be further than is known here: it would contradict the deletion."""
    machines = overlay(3)
    subscribe(machines, 1)
    machines.run(1.0)
    machines.loses = (HomeQuery,)
    subscribe(machines, 3)
    machines.give(3, Unsubscribe(1, forget=True), link=LINK, request=4)
    machines.run(1.0)
    assert refusals(machines.nodes[3]) == [DurableElsewhereError]
    assert not machines.nodes[3].told(Unsubscribed)
    assert homes(machines) == {1}


def test_a_new_broker_that_knows_nobody_takes_no_name() -> None:
    """It is set up with neighbours, and the name may exist there: alone it would be a majority of itself."""
    machines = overlay(2, BrokerConfig(silence_s=0.2, has_neighbours=True))
    subscribe(machines, 1)
    machines.run(1.0)
    machines.leave(1, LINK)
    machines.start(3)
    subscribe(machines, 3)
    machines.run(6.0)
    assert not active(machines.nodes[3])
    assert refusals(machines.nodes[3]) == [DurableElsewhereError]
    assert "not reached any of its neighbours" in str(machines.nodes[3].refused[0][1])
    assert not reservations(machines)


def test_a_new_broker_finds_a_name_as_soon_as_it_has_a_neighbour() -> None:
    """Its client waits a moment instead of being refused, and the subscription moves here from where it was."""
    machines = overlay(2, BrokerConfig(silence_s=0.2, has_neighbours=True))
    subscribe(machines, 1)
    machines.run(1.0)
    machines.leave(1, LINK)
    machines.start(3)
    subscribe(machines, 3)
    machines.run(1.0)
    machines.link(2, 3)
    machines.run(3.0)
    assert active(machines.nodes[3])
    assert homes(machines) == {3}
    assert "orders" not in machines.nodes[1].broker._durables.here


def test_a_broker_without_neighbours_takes_names_by_itself() -> None:
    """Nobody else is there; those who link to it later learn of its names."""
    machines = Machines(BrokerConfig(silence_s=0.2))
    machines.start(1)
    machines.run(1.0)
    subscribe(machines, 1)
    machines.run(1.0)
    assert active(machines.nodes[1])


def test_a_broker_whose_neighbours_are_retired_takes_names_by_itself() -> None:
    """It is set up with neighbours that are gone for good."""
    machines = Machines(BrokerConfig(silence_s=0.2, has_neighbours=True, retired=(2,)))
    machines.start(1)
    machines.run(1.0)
    subscribe(machines, 1)
    machines.run(1.0)
    assert active(machines.nodes[1])
