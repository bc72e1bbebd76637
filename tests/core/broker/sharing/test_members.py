"""The members of a shared subscription: who is given which message, what comes back, and what is stored."""

from __future__ import annotations

import random

import pytest

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.broker.sharing.members import Members
from postroad.types import AttributeValue

PUBEND = 256


def rows(*messages: tuple[int, AttributeValue | None]) -> Batch:
    """Make messages: (tick, the value of `account` or None)."""
    built = [
        (tick.to_bytes(16, "big"), {} if account is None else {"account": account}, b"payload") for tick, account in messages
    ]
    (batch,) = build_batches(built)
    return batch.with_ticks([tick for tick, _ in messages])


def group(*members: int, key: str = "", credit: int = 100) -> Members:
    made = Members(key)
    made.begin(PUBEND, 0)
    for member in members:
        made.join(member, credit)
    return made


def add(members: Members, *ticks: int, account: AttributeValue | None = None) -> None:
    members.add(PUBEND, rows(*((tick, account) for tick in ticks)), ticks[-1])


def give(members: Members) -> list[tuple[int, int]]:
    """Give what can be given; return (member, tick) in order."""
    return [(given.member, int(tick)) for given in members.give() for tick in given.rows.ticks()]


def finish(members: Members, member: int, *ticks: int) -> None:
    assert members.finish(member, PUBEND, ticks) == ([*ticks], [])
    members.stored(PUBEND, ticks)


def test_each_message_goes_to_one_member_and_to_the_one_that_holds_the_fewest() -> None:
    """Two members share the work evenly."""
    members = group(1, 2)
    add(members, 1, 2, 3, 4)
    assert sorted(give(members)) == [(1, 1), (1, 3), (2, 2), (2, 4)]
    assert give(members) == []


def test_a_member_holds_at_most_its_credit() -> None:
    """What it has no room for waits until it has acknowledged something."""
    members = group(1, credit=2)
    add(members, 1, 2, 3)
    assert give(members) == [(1, 1), (1, 2)]
    finish(members, 1, 2)
    assert give(members) == [(1, 3)]


def test_a_member_that_takes_no_rows_is_given_none() -> None:
    """Its application or its connection is slow; the others get its part."""
    members = group(1, 2)
    members.take_rows(1, ready=False)
    add(members, 1, 2)
    assert give(members) == [(2, 1), (2, 2)]
    members.take_rows(1, ready=True)
    add(members, 3)
    assert members.give(stopped=[1, 2]) == []
    assert give(members) == [(1, 3)]


def test_what_a_lost_member_held_comes_again_before_newer_messages() -> None:
    """In the order in which it came, and without what it had acknowledged."""
    members = group(1, credit=3)
    add(members, 1, 2, 3, 4)
    assert give(members) == [(1, 1), (1, 2), (1, 3)]
    finish(members, 1, 2)
    members.leave(1)
    members.join(2, 10)
    assert give(members) == [(2, 1), (2, 3), (2, 4)]


def test_only_the_holder_can_acknowledge_and_only_once() -> None:
    """Whoever lost a message to another member is refused."""
    members = group(1)
    add(members, 1)
    give(members)
    members.leave(1)
    members.join(1, 10)
    members.join(2, 10)
    assert members.finish(2, PUBEND, [1]) == ([], [1])
    assert give(members) == [(1, 1)]
    assert members.finish(1, PUBEND, [1, 1]) == ([1], [1])


def test_messages_with_one_key_are_given_one_after_the_other() -> None:
    """The next one only when the acknowledgement of the one before is on disk."""
    members = group(1, 2, key="account")
    add(members, 1, 2, 3, account="A")
    add(members, 4, account="B")
    assert give(members) == [(1, 1), (2, 4)]
    assert members.finish(1, PUBEND, [1]) == ([1], [])
    assert give(members) == []
    members.stored(PUBEND, [1])
    assert [tick for _, tick in give(members)] == [2]


def test_a_key_goes_on_with_another_member_where_the_lost_one_was() -> None:
    """The unacknowledged message comes first."""
    members = group(1, key="account")
    add(members, 1, 2, account="A")
    give(members)
    members.leave(1)
    members.join(2, 10)
    assert give(members) == [(2, 1)]
    finish(members, 2, 1)
    assert give(members) == [(2, 2)]


def test_messages_without_the_attribute_have_no_order() -> None:
    """They are given at once."""
    members = group(1, 2, key="account")
    add(members, 1, 2)
    assert len(give(members)) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), ("1", 1, False), (float("nan"), float("nan"), True), ("A", "A", True)],
)
def test_keys_are_equal_as_values_are(one: AttributeValue, other: AttributeValue, same: bool) -> None:
    """Numbers by value, and NaN as itself; a bool is no number."""
    members = group(1, key="account")
    add(members, 1, account=one)
    add(members, 2, account=other)
    assert len(give(members)) == (1 if same else 2)


def test_the_floor_follows_the_first_message_that_is_not_finished() -> None:
    """And silence, when all are."""
    members = group(1)
    add(members, 5, 7)
    members.reach(PUBEND, 20)
    give(members)
    assert members.floor(PUBEND) == 4
    finish(members, 1, 7)
    assert members.floor(PUBEND) == 4
    finish(members, 1, 5)
    assert members.floor(PUBEND) == 20


def test_what_is_stored_says_which_messages_a_new_life_leaves_out() -> None:
    """Whatever the cursor was when it was written."""
    members = group(1)
    add(members, 1, 2, 3, 4, 5)
    give(members)
    finish(members, 1, 1, 3, 4)
    assert members.unfinished({PUBEND: 0}) == {PUBEND: [4, 2]}
    assert members.unfinished({PUBEND: 4}) == {}
    for cursor in (0, 1):
        again = Members()
        again.begin(PUBEND, cursor, [4, 2])
        again.join(1, 10)
        left_out = again.add(PUBEND, rows(*((tick, None) for tick in range(cursor + 1, 6))), 5)
        assert left_out is not None
        assert [int(tick) for tick in left_out.ticks()] == [tick for tick in (1, 3, 4) if tick > cursor]
        assert [tick for _, tick in give(again)] == [2, 5]


def test_what_has_not_come_yet_in_a_new_life_stays_stored_as_unfinished() -> None:
    """A second crash before it has come loses nothing."""
    members = Members()
    members.begin(PUBEND, 0, [9, 2, 6])
    members.join(1, 10)
    members.add(PUBEND, rows((1, None), (2, None)), 3)
    assert give(members) == [(1, 2)]
    finish(members, 1, 2)
    assert members.unfinished({PUBEND: 0}) == {PUBEND: [9, 6]}


def test_it_is_full_and_half_empty_by_rows_and_by_bytes() -> None:
    """Reaching a bound stops the delivery to the group; nothing is dropped."""
    members = Members(rows_max=4)
    members.begin(PUBEND, 0)
    members.join(1, 10)
    add(members, 1, 2, 3)
    assert (members.is_full, members.is_half_empty) == (False, False)
    add(members, 4)
    assert members.is_full
    give(members)
    finish(members, 1, 1, 2)
    assert members.is_half_empty
    assert Members(bytes_max=0).is_full


@pytest.mark.parametrize("seed", range(20))
def test_with_any_losses_each_message_is_finished_once_and_keys_stay_in_order(seed: int) -> None:
    """Members come and go, the broker crashes now and then and goes on from what was stored."""
    chance = random.Random(seed)
    ticks = sorted(chance.sample(range(1, 10_000), 120))
    keys = {tick: chance.choice(("A", "B", "C", None)) for tick in ticks}
    finished: list[int] = []
    members, number, stored = Members("account"), 0, dict[int, list[int]]()
    members.begin(PUBEND, 0)
    cursor, coming = 0, list(ticks)
    while len(finished) < len(ticks):
        match chance.randrange(8):
            case 0:
                number += 1
                members.join(number, chance.randint(1, 5))
            case 1 if len(members):
                members.leave(chance.choice(list(members._members)))
            case 2 if chance.random() < 0.2:
                members = Members("account")
                members.begin(PUBEND, cursor, stored.get(PUBEND, ()))
                coming = [tick for tick in ticks if tick > cursor]
            case 3 | 4:
                piece, coming = coming[:7], coming[7:]
                if piece:
                    members.add(PUBEND, rows(*((tick, keys[tick]) for tick in piece)), piece[-1])
            case _ if len(members):
                members.give()
                member = chance.choice(list(members._members))
                held = [tick for _, tick in members._members[member].held]
                if held:
                    tick = chance.choice(held)
                    done, _ = members.finish(member, PUBEND, [tick])
                    stored = members.unfinished({PUBEND: cursor})
                    cursor = chance.choice((cursor, members.floor(PUBEND)))
                    members.stored(PUBEND, done)
                    finished += done
            case _:
                pass
    assert sorted(finished) == ticks
    for key in ("A", "B", "C"):
        assert [tick for tick in finished if keys[tick] == key] == [tick for tick in ticks if keys[tick] == key]
