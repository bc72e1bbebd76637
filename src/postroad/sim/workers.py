"""A simulated client whose application is a member of shared subscriptions.

It works on what it is given, for a while, and then acknowledges it. It writes into the history what it is told to be stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postroad.core.session.events import (
    Event,
    HomeNamed,
    MemberLost,
    Missed,
    PubendJoined,
    RowsFinished,
    RowsGiven,
    SubscriptionActive,
    SubscriptionEnded,
    SubscriptionFailed,
)
from postroad.errors import AdmissionError
from postroad.sim import history as seen
from postroad.sim.brokers import BrokerNode, ids_of
from postroad.sim.clients import ClientNode, Habits
from postroad.sim.history import History
from postroad.sim.network import CableProfile, Network
from postroad.sim.world import World

JOIN_AGAIN_S: Final = 0.3


@dataclass(slots=True)
class Working:
    """One membership of the application."""

    filter: str
    group: str  # the name of the shared subscription
    key: str
    credit: int
    work_s: Sequence[float]  # how long a message takes, one of these
    earliest: bool = False
    number: int | None = None  # in the session
    left: bool = False
    rejected: bool = False  # the overlay had no room for it when it asked last
    deleting: bool = False


class WorkerNode(ClientNode):
    """A client that works on shared subscriptions. It acknowledges what it was given also when that is not its own any more."""

    def __init__(
        self,
        world: World,
        network: Network,
        history: History,
        name: str,
        brokers: list[BrokerNode],
        *,
        habits: Habits | None = None,
        profile: CableProfile | None = None,
    ) -> None:
        super().__init__(world, network, history, name, brokers, habits=habits, profile=profile)
        self.working: list[Working] = []
        self._chance = world.chance(f"work/{name}")

    def work(
        self,
        filter_text: str,
        group: str,
        *,
        key: str = "",
        credit: int = 3,
        work_s: Sequence[float] = (0.01,),
        earliest: bool = False,
    ) -> Working:
        """Become a member, now and after each crash."""
        working = Working(filter_text, group, key, credit, work_s, earliest)
        self.working.append(working)
        self.world.note("join", f"{self.name}: {group} {filter_text} by {key or 'nothing'}")
        self.history.add(seen.SharedAsked(self.world.now, group, filter_text, key))
        if self.session is not None:
            self._join(working)
            self._act()
        return working

    def start(self) -> None:
        super().start()
        for working in self.working:
            self._join(working)
        self._act()

    def crash(self, *, lose_file: bool = False) -> None:
        for working in self.working:
            working.number = None
        super().crash(lose_file=lose_file)

    def leave_group(self, working: Working, *, forget: bool = False) -> None:
        """Want no more messages; with `forget`, delete the shared subscription."""
        working.left, working.deleting = True, forget
        self.world.note("leave", f"{self.name}: {working.group}")
        if self.session is not None and working.number is not None:
            self.session.sharing.leave(working.number, forget=forget)
            self._act()

    def give_up_work(self, working: Working, seconds: float) -> None:
        """Leave for a while; what it holds goes to others."""
        if self.session is None or working.number is None or working.left:
            return
        number, working.number = working.number, None
        if number in self.session.sharing.memberships:
            self.session.sharing.leave(number)
        self._act()
        self.world.after(seconds, self._join_again, working, self._life)

    def open_ends(self, last: Mapping[int, int]) -> Iterator[str]:
        yield from super().open_ends(last)
        for working in self.working:
            membership = None
            if self.session is not None and working.number is not None:
                membership = self.session.sharing.memberships.get(working.number)
            if working.left or working.rejected:
                continue
            if membership is None or not membership.active:
                yield f"{self.name} is not a member of {working.group}"
                continue
            finished = self._finished(working.group)
            for pubend, tick in last.items():
                if finished.get(pubend, -1) < tick:
                    yield f"{working.group} is finished up to {finished.get(pubend)} of pubend {pubend}, which goes on to {tick}"

    def give_up_rejected(self) -> None:
        super().give_up_rejected()
        for working in self.working:
            if working.rejected and not working.left:
                self.leave_group(working)
                self.history.add(seen.SharedEnded(self.world.now, working.group))

    def _finished(self, group: str) -> dict[int, int]:
        for node in self.directory.values():
            if node.machine is not None and (found := node.machine.machine.sharing.finished(group)):
                return found
        return {}

    def _join(self, working: Working) -> None:
        if self.session is None or working.left:
            return
        working.number = self.session.join(
            working.filter, name=working.group, ordered_by=working.key, credit=working.credit, earliest=working.earliest
        )

    def _join_again(self, working: Working, life: int) -> None:
        if life == self._life and self.session is not None and working.number is None:
            self._join(working)
            self._act()

    def _take(self, event: Event) -> None:
        working = next((each for each in self.working if each.number == getattr(event, "subscription", 0)), None)
        if working is None:
            if not isinstance(event, RowsGiven | RowsFinished | MemberLost | HomeNamed):  # it has left
                super()._take(event)
            return
        now = self.world.now
        match event:
            case SubscriptionActive(starts=starts):
                working.rejected = False
                for pubend, tick in starts.items():
                    self.history.add(seen.SharedBegan(now, working.group, pubend, tick))
            case PubendJoined(pubend=pubend, tick=tick):
                self.history.add(seen.SharedBegan(now, working.group, pubend, tick))
            case RowsGiven(pubend=pubend, batch=batch):
                self.history.add(seen.Arrived(now, *self._hearing, working.group, ids_of(batch)))
                for row in batch:
                    work_s = self._chance.choice(working.work_s)
                    self.world.after(work_s, self._acknowledge, working, pubend, row.tick, self._life)
            case RowsFinished(ticks=ticks):
                for pubend, finished in ticks.items():
                    for tick in finished:
                        self.history.add(seen.Finished(now, working.group, self.name, pubend, tick))
            case MemberLost():
                self.world.note("member", f"{self.name} lost what it held of {working.group}")
            case HomeNamed(home=home):
                self._go_home(working, home)
            case Missed(pubend=pubend, lo=lo, hi=hi):
                self.history.add(seen.SharedGapped(now, working.group, pubend, lo, hi))
            case SubscriptionFailed(error=error):
                self.world.note("refused", f"{self.name}: {working.group}: {type(error).__name__}: {error}")
                working.number, working.rejected = None, isinstance(error, AdmissionError)
                if error.retryable:
                    self.world.after(JOIN_AGAIN_S, self._join_again, working, self._life)
            case SubscriptionEnded(error=error):
                working.number = None
                working.deleting = working.deleting and error is not None
            case _:
                super()._take(event)

    def _go_home(self, working: Working, home: int) -> None:
        """Dial the broker that is the home of a shared subscription."""
        assert self.session is not None
        assert working.number is not None
        node = self.directory.get(home)
        if node is None:
            self.session.sharing.not_found(working.number, home, self.world.now)
            return
        self.world.after(self.habits.redial_s, self._redial, node, self._life)

    def _redial(self, node: BrokerNode, life: int) -> None:
        if life == self._life and self.session is not None and not node.retired:
            self.move([node, *(each for each in self.brokers if each is not node)])

    def _acknowledge(self, working: Working, pubend: int, tick: int, life: int) -> None:
        if life != self._life or self.session is None or working.number not in self.session.sharing.memberships:
            return
        self.session.sharing.acknowledge(working.number, {pubend: [tick]})
        self._act()
