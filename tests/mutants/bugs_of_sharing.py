"""Planted bugs in shared subscriptions: who is given what, and what is stored."""

from __future__ import annotations

from typing import Any

from tests.mutants.planting import Planter, mutant

from postroad.core.broker.sharing.groups import Sharing
from postroad.core.broker.sharing.members import Members


@mutant("sharing", "shared subscriptions", "broker crash")
def confirm_acknowledgements_of_members_without_storing_them(plant: Planter) -> None:
    """A member is told that its acknowledgement is on disk, and the record does not have it."""

    def make(_keep: Any) -> Any:
        def keep_nothing(_self: Sharing, _group: Any) -> None:
            return

        return keep_nothing

    plant.wrap(Sharing, "_keep_unfinished", make)


@mutant("sharing", "shared subscriptions", "client cut", "client outage")
def forget_what_a_lost_member_held(plant: Planter) -> None:
    """What a member held when it was lost is not given to others."""

    def make(leave: Any) -> Any:
        def forgetful(self: Members, member: int) -> None:
            self._members[member].held.clear()
            leave(self, member)

        return forgetful

    plant.wrap(Members, "leave", make)


@mutant("sharing", "shared subscriptions", "shared subscriptions with a key")
def drop_the_key(plant: Planter) -> None:
    """Messages with the same key are given at once, to whoever has room."""

    def make(_keys: Any) -> Any:
        def no_keys(_self: Members, _rows: Any, indices: Any) -> Any:
            return (None for _ in indices)

        return no_keys

    plant.wrap(Members, "_keys_of", make)


@mutant("sharing", "shared subscriptions")
def give_one_message_to_two_members(plant: Planter) -> None:
    """Now and then a message that a member holds is given to another one as well."""

    def make(give: Any) -> Any:
        def twice(self: Members, stopped: Any = ()) -> Any:
            given = give(self, stopped)
            others = [
                number for number, member in self._members.items() if given and number != given[0].member and member.has_room
            ]
            if not others:
                return given
            first = given[0]
            for tick in first.rows.ticks():
                place = first.pubend, int(tick)
                self._members[others[0]].held[place] = self._members[first.member].held[place]
            return [*given, type(first)(others[0], first.pubend, first.rows)]

        return twice

    plant.wrap(Members, "give", make)


@mutant("sharing", "shared subscriptions", "shared subscriptions with a key", "broker crash", "broker outage")
def go_on_with_a_key_before_the_disk(plant: Planter) -> None:
    """The next message with a key is given when the one before is acknowledged, not when that is on disk."""

    def make(finish: Any) -> Any:
        def early(self: Members, member: int, pubend: int, ticks: Any) -> Any:
            done, refused = finish(self, member, pubend, ticks)
            self.stored(pubend, done)
            return done, refused

        return early

    plant.wrap(Members, "finish", make)
