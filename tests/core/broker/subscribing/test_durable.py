"""Durable subscriptions: what holds the logs for them."""

from __future__ import annotations

import pytest

from postroad.core.broker.subscribing.durable import Durables
from postroad.core.protocol.packets import DurableHome, Subscribe, pubend_id

PUBEND = pubend_id(2)


def test_a_hold_rises_only_as_far_as_the_cursor_is_on_disk() -> None:
    """After a crash the subscription goes on from the stored cursor, so the log must reach back to it."""
    durables = Durables(1)
    durables.take_home("orders", "x > 1", {PUBEND: 100}).subscription = 7
    durables.mark("orders")
    first = durables.changes()
    durables.stored(first)
    assert durables.holds() == {PUBEND: 100}
    durables.moved_on("orders", {PUBEND: 250})
    second = durables.changes()
    assert durables.holds() == {PUBEND: 100}, "it is being written, not yet written"
    durables.stored(second)
    assert durables.holds() == {PUBEND: 250}


def test_what_is_on_disk_is_found_again_after_a_restart() -> None:
    """The stored record brings back cursor and hold."""
    durables = Durables(1)
    durables.take_home("orders", "x > 1", {PUBEND: 100})
    durables.mark("orders")
    again = Durables(1)
    for key, value in durables.changes():
        assert value is not None
        again.load(key, value)
    assert again.here["orders"].cursors == {PUBEND: 100}
    assert again.holds() == {PUBEND: 100}


def test_a_mended_record_takes_its_version_from_what_others_know_and_can_be_deleted() -> None:
    """It had none. After a restart its deletion was older than what others knew, and they kept the subscription."""
    durables = Durables(1)
    durables.load_damaged("orders", {PUBEND: 100})
    durables.mend(durables.here["orders"], Subscribe(1, "x > 1", "orders"))
    durables.learn(DurableHome("orders", 3, 1, settled=True, created_ms=5_000))
    again = Durables(1)
    for key, value in durables.changes():
        assert value is not None
        again.load(key, value)
    assert (again.here["orders"].version, again.here["orders"].created_ms) == (3, 5_000)
    assert again.forget("orders").version == 4


def test_where_its_place_is_lost_an_acknowledgement_elsewhere_is_no_word_of_it() -> None:
    """It was about to begin there, and its client was not told of the loss yet: it began at what was released, without a gap."""
    durables = Durables(1)
    durable = durables.take_home("orders", "x > 1", {})
    durable.lost = {PUBEND: None}
    durables.moved_on("orders", {PUBEND: 100})
    assert (durable.cursors, durable.lost) == ({}, {PUBEND: None})
    durable.cursors[PUBEND] = 100  # its start is stored, and the gap told
    durables.moved_on("orders", {PUBEND: 100})
    assert durable.lost == {PUBEND: None}
    durables.moved_on("orders", {PUBEND: 101})
    assert (durable.cursors, durable.lost) == ({PUBEND: 101}, {})


def test_only_a_home_that_never_settled_goes_back_to_where_its_client_is() -> None:
    """Nobody was told of it, so the client may have gone on from older cursors elsewhere; then the hold goes back as well."""
    durables = Durables(1)
    durable = durables.take_home("orders", "x > 1", {PUBEND: 250})
    durables.mark("orders")
    durables.stored(durables.changes())
    durables.believe(durable, {PUBEND: 300}, {PUBEND: 120})
    assert (durable.cursors, durables.holds(), durables.dirty) == ({PUBEND: 250}, {PUBEND: 250}, False)
    durables.believe(durable, {PUBEND: 200}, {PUBEND: 120})
    assert (durable.cursors, durables.holds(), durables.dirty) == ({PUBEND: 120}, {PUBEND: 120}, True)
    durables.settle("orders")
    durables.believe(durable, {PUBEND: 50}, {})
    assert durable.cursors == {PUBEND: 120}


def test_a_deleted_name_stays_deleted_after_a_restart() -> None:
    """Brokers that missed the deletion still name the old home; its stored word outranks theirs."""
    durables = Durables(1)
    durables.take_home("orders", "x > 1", {PUBEND: 100})
    before = durables.settle("orders")
    stored = dict(durables.changes())
    durables.forget("orders")
    stored.update(dict(durables.changes()))
    again = Durables(1)
    for key, value in stored.items():
        if value is not None:
            again.load(key, value)
    assert again.learn(before) == (None, None)
    assert again.home_brokers() == set()


@pytest.mark.parametrize("first", [1, 5])
def test_of_two_creations_of_one_name_the_older_stays(first: int) -> None:
    """A broker that knew nobody may have created it again; wherever word of both comes, the real one counts."""
    older = DurableHome("orders", 1, 1, settled=True, created_ms=1_000)
    newer = DurableHome("orders", 1, 5, settled=True, created_ms=7_000)
    durables = Durables(3)
    for home in (older, newer) if first == 1 else (newer, older):
        durables.learn(home)
    assert durables.elsewhere("orders") == 1


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_deletion_ends_its_creation_wherever_that_has_moved(version: int) -> None:
    """Whichever word comes first, and whatever the version of the move that the deleting broker had not heard of."""
    moved = DurableHome("orders", version, 5, settled=True, created_ms=7_000)
    deleted = DurableHome("orders", 2, 0, settled=True, created_ms=7_000)
    for one, two in ((moved, deleted), (deleted, moved)):
        durables = Durables(3)
        durables.learn(one)
        news, _ = durables.learn(two)
        assert durables.homes["orders"].broker == 0
        assert durables.homes["orders"].version > version
        assert news is None if (one, version) == (deleted, 1) else news == durables.homes["orders"]


def test_a_deletion_does_not_end_a_later_creation() -> None:
    """The name was taken again, at the same version or above."""
    deleted = DurableHome("orders", 2, 0, settled=True, created_ms=7_000)
    later = DurableHome("orders", 2, 5, settled=True, created_ms=9_000)
    for one, two in ((later, deleted), (deleted, later)):
        durables = Durables(3)
        durables.learn(one)
        durables.learn(two)
        assert durables.elsewhere("orders") == 5


def test_a_deletion_says_what_it_deletes() -> None:
    """The time of its creation tells it from others of the same name."""
    durables = Durables(1)
    durables.take_home("orders", "x > 1", {}, created_ms=7_000)
    durables.settle("orders")
    assert durables.forget("orders") == DurableHome("orders", 2, 0, settled=True, created_ms=7_000)


def test_a_version_that_is_only_noted_is_told_to_nobody() -> None:
    """The broker that takes a subscription over goes above it; others would take the note for a deletion and let go."""
    durables = Durables(3)
    durables.outbid("orders", 1)
    assert durables.told_to_others() == []
    assert durables.take_home("orders", "x > 1", {}).version == 2
    home = durables.settle("orders")
    assert durables.told_to_others() == [home]
    gone = durables.forget("orders")
    assert durables.told_to_others() == [gone]
