"""Planted bugs in the client session and in the disks."""

from __future__ import annotations

from typing import Any

from tests.mutants.planting import Planter, mutant

from postroad.core.protocol.orders import Append, Appended, PubendState, Stored
from postroad.core.session.machine import Session
from postroad.core.session.publishing import Registration
from postroad.core.session.subscribing import SubscriptionState
from postroad.sim.disk import Disk, Log

# --- session


@mutant("session")
def ignore_a_later_start(plant: Planter) -> None:
    """A client does not take in that its subscription has begun in one more pubend."""
    plant.set(Session, "_take_start", lambda _self, _message: None)


@mutant("session")
def begin_again_at_the_last_row(plant: Planter) -> None:
    """A subscription that begins again asks from a little before its position, and delivers that again."""

    def make(request: Any) -> Any:
        def early(self: SubscriptionState) -> Any:
            for place in self.pubends.values():
                place.position = max(place.position - (500 << 16), (self.starts and min(self.starts.values())) or 0)
            return request(self)

        return early

    plant.wrap(SubscriptionState, "request", make)


@mutant("session")
def acknowledge_what_was_received(plant: Planter) -> None:
    """The broker hears of what came, not of what the application has done with."""

    def received(self: SubscriptionState) -> dict[int, int]:
        return {pubend: state.position for pubend, state in self.pubends.items()}

    plant.set(SubscriptionState, "acknowledged", received)


@mutant("session")
def send_nothing_again(plant: Planter) -> None:
    """What was sent over a lost connection is taken for received."""

    def closed(self: Registration) -> None:
        self.link = None

    plant.set(Registration, "closed", closed)


@mutant("session")
def take_every_acknowledgement_for_all(plant: Planter) -> None:
    """An acknowledgement counts for everything that was sent."""

    def make(acknowledged: Any) -> Any:
        def everything(self: Registration, last: int) -> Any:
            sent = [frame.last for frame in self._frames if frame.sent]
            return acknowledged(self, max([last, *sent]))

        return everything

    plant.wrap(Registration, "acknowledged", make)


@mutant("session")
def give_up_after_a_refusal(plant: Planter) -> None:
    """A subscription that was refused for the time being does not try again."""

    def make(refused: Any) -> Any:
        def final(self: Session, subscription: Any, error: Any, now: float) -> None:
            refused(self, subscription, error, now)
            subscription.retry_at = None

        return final

    plant.wrap(Session, "_subscribe_refused", make)


@mutant("session")
def forget_the_publisher_at_a_reconnect(plant: Planter) -> None:
    """A publisher opens anew instead of going on, and keeps its old messages for ever."""

    def make(ask: Any) -> Any:
        def anew(self: Session, publisher: Any, link: int, broker: int, registration: Any) -> None:
            del registration
            ask(self, publisher, link, broker, None)

        return anew

    plant.wrap(Session, "_ask_to_open", make)


@mutant("session")
def swallow_a_gap(plant: Planter) -> None:
    """A gap moves the position and the application does not hear of it."""
    plant.set(Session, "_gap", _skip)


def _skip(session: Session, message: Any) -> None:
    subscription = session._handles.get(message.handle)
    if subscription is not None:
        subscription.skip(message.pubend, message.lo, message.hi)


@mutant("session", "client clock", "client cut")
def repeat_ids(plant: Planter) -> None:
    """After a reconnect ids begin at the clock again, though later ones were given out."""

    def make(opened: Any) -> Any:
        def stepped(self: Registration, *arguments: Any, **how: Any) -> None:
            opened(self, *arguments, **how)
            self.last_tick = 0

        return stepped

    plant.wrap(Registration, "opened", make)


# --- storage


@mutant("storage")
def report_before_the_sync(plant: Planter) -> None:
    """A log reports an append before it is durable."""

    def make(write: Any) -> Any:
        def early(self: Disk, order: Any, report: Any) -> None:
            if isinstance(order, Append):
                self.world.after(0.0, _report_if_alive, self, self._life, report, Appended(order.pubend, order.token))
                write(self, order, lambda _fact: None)
            else:
                write(self, order, report)

        return early

    plant.wrap(Disk, "write", make)


@mutant("storage", "broker crash", "disk slow")
def report_metadata_before_the_sync(plant: Planter) -> None:
    """Metadata is reported stored before it is durable."""

    def make(write: Any) -> Any:
        def early(self: Disk, order: Any, report: Any) -> None:
            if isinstance(order, Append):
                write(self, order, report)
            else:
                self.world.after(0.0, _report_if_alive, self, self._life, report, Stored(order.token))
                write(self, order, lambda _fact: None)

        return early

    plant.wrap(Disk, "write", make)


def _report_if_alive(disk: Disk, life: int, report: Any, fact: Any) -> None:
    if disk._life == life:
        report(fact)


@mutant("storage", "broker crash", "far publishers")
def recover_no_publishers(plant: Planter) -> None:
    """The publishers of a log are not recovered when its broker starts."""
    plant.set(Log, "state", lambda self: PubendState(self.pubend, self.last_tick, self.released, ()))


@mutant("storage")
def read_past_what_was_read(plant: Planter) -> None:
    """A read that was cut short says that it has told everything."""

    def make(read: Any) -> Any:
        def far(self: Log, lo: int, hi: int, bytes_max: int) -> Any:
            _, batches = read(self, lo, hi, min(bytes_max, 4_000))
            return hi, batches

        return far

    plant.wrap(Log, "read", make)


@mutant("storage")
def release_a_segment_too_many(plant: Planter) -> None:
    """A release takes one segment that reaches beyond its tick."""

    def make(release: Any) -> Any:
        def greedy(self: Log, tick: int, segment_batches: int) -> None:
            release(self, tick, segment_batches)
            if len(self.batches) > segment_batches:
                self._drop(segment_batches)

        return greedy

    plant.wrap(Log, "release", make)


@mutant("storage")
def keep_deleted_metadata(plant: Planter) -> None:
    """A deleted key is there again after a restart."""

    def make(commit: Any) -> Any:
        def keeping(self: Disk, order: Any) -> None:
            if isinstance(order, Append):
                commit(self, order)
                return
            self.metadata.update({key: value for key, value in order.changes if value is not None})

        return keeping

    plant.wrap(Disk, "_commit", make)


@mutant("storage")
def lose_the_last_write_at_a_stop(plant: Planter) -> None:
    """A crash loses the last append that was reported durable."""

    def make(crash: Any) -> Any:
        def losing(self: Disk) -> None:
            crash(self)
            for log in self.logs.values():
                if len(log.batches) > 1:
                    log.batches.pop()
                    log.last_ticks.pop()
                    log.last_tick = log.last_ticks[-1]

        return losing

    plant.wrap(Disk, "crash", make)
