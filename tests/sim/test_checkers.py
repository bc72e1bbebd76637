"""Every checker fails on a history made to break its rule, and passes on a sound one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from postroad.sim.checkers import CHECKERS, check
from postroad.sim.checkers.delivery import Completeness, ExactlyOnce, NoPhantom, Order, StartExactness
from postroad.sim.checkers.liveness import BoundedMemory, Converges, ReservationsAgree, ThrottlesEnd
from postroad.sim.checkers.publishing import AcknowledgedIsDurable, OnePubend, PublishersConverge
from postroad.sim.checkers.release import GapsAreEarned, LogsAreReleased, ReleaseSafety
from postroad.sim.checkers.sharing import SharedCompleteness, SharedExactlyOnce, SharedOrder
from postroad.sim.checkers.tracking import TracksAreTrue
from postroad.sim.history import (
    Abandoned,
    Acknowledged,
    Asked,
    Attributes,
    Began,
    Committed,
    Confirmed,
    Delivered,
    Discarded,
    Disconnected,
    DiskLost,
    Ended,
    Event,
    Finished,
    Forgot,
    Freed,
    Gapped,
    Handed,
    History,
    Logged,
    Measured,
    MemberGone,
    Parted,
    Passed,
    Published,
    RecordCreated,
    RecordSpoiled,
    Refused,
    Remains,
    ReservationsCompared,
    Restarted,
    Retired,
    Settled,
    SharedAsked,
    SharedBegan,
    SharedGapped,
    Spoiled,
    StillThrottled,
    Taken,
    WrittenOff,
)

P, Q = 0x100, 0x200


def message_id(number: int, publisher: int = 1) -> bytes:
    return publisher.to_bytes(4) + bytes(4) + number.to_bytes(8)


def published(number: int, at: float = 1.0, publisher: int = 1) -> Published:
    return Published(at, message_id(number, publisher), {"n": number}, b"%d" % number)


def logged(number: int, pubend: int = P, tick: int | None = None, at: float = 2.0, publisher: int = 1) -> Logged:
    return Logged(at, pubend, tick or number, message_id(number, publisher), b"%d" % number)


def got(number: int, pubend: int = P, tick: int | None = None, at: float = 3.0, sub: str = "s") -> Delivered:
    return Delivered(at, sub, pubend, tick or number, message_id(number), {"n": number}, b"%d" % number)


def asked(durable: bool = False, filter_text: str = "TRUE") -> Asked:
    return Asked(0.0, "s", filter_text, durable)


def began(tick: int = 0, at: float = 0.5, pubend: int = P) -> Began:
    return Began(at, "s", pubend, tick)


def three(durable: bool = False) -> list[Event]:
    """Three messages published, acknowledged and logged, and a subscription that waits for them."""
    events: list[Event] = [asked(durable), began()]
    events += [published(n) for n in (1, 2, 3)] + [logged(n) for n in (1, 2, 3)]
    return events + [Acknowledged(2.5, message_id(n)) for n in (1, 2, 3)]


def odd_only(filter_text: str, attributes: Attributes) -> bool:
    return filter_text == "TRUE" or int(attributes["n"]) % 2 == 1


def kinds_by(checker: type, events: Iterable[Event]) -> list[str]:
    return [violation.kind for violation in checker().check(History(list(events)), odd_only)]


def test_a_sound_history_passes_every_checker() -> None:
    """Nobody complains about three messages delivered in order."""
    assert check(History([*three(), got(1), got(2), got(3)]), odd_only) == []


def test_exactly_once_sees_a_message_that_comes_again() -> None:
    """A second delivery of one message is a duplicate."""
    assert kinds_by(ExactlyOnce, [*three(), got(1), got(2), got(2)]) == ["duplicated"]
    assert kinds_by(ExactlyOnce, [*three(), got(1), got(2), got(1)]) == ["duplicated"]


def test_order_sees_a_message_that_comes_late() -> None:
    """Ticks of one pubend ascend."""
    assert kinds_by(Order, [*three(), got(1), got(3), got(2)]) == ["misordered"]
    assert kinds_by(Order, [*three(), got(1), got(2), got(3)]) == []


def test_order_sees_a_message_from_before_the_start() -> None:
    """Nothing at or before the start tick may come."""
    assert kinds_by(Order, [asked(), began(5), got(4)]) == ["misordered"]


def test_order_sees_a_message_of_a_pubend_that_has_not_begun() -> None:
    """Before a pubend has begun nothing of it may come."""
    assert kinds_by(Order, [asked(), got(4)]) == ["misordered"]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (got(9), "nobody published it"),
        (Delivered(3.0, "s", P, 1, message_id(1), {"n": 8}, b"1"), "it was changed"),
        (Delivered(3.0, "s", P, 1, message_id(1), {"n": 1}, b"other"), "it was changed"),
        (got(1, tick=2), "it lies at"),
        (got(1, pubend=Q), "it lies at"),
    ],
)
def test_no_phantom_sees_what_was_not_published_so(event: Delivered, reason: str) -> None:
    """A delivery must be a published message, unchanged, from its place."""
    (violation,) = NoPhantom().check(History([*three(), event]), odd_only)
    assert violation.kind == "phantom"
    assert reason in violation.text


def test_no_phantom_sees_a_delivery_that_is_not_durable_yet() -> None:
    """Nobody hears of a message before it is durable."""
    assert kinds_by(NoPhantom, [asked(), published(1), got(1), logged(1)]) == ["phantom"]


def test_no_phantom_sees_a_message_that_does_not_match() -> None:
    """What does not match the filter does not come."""
    assert kinds_by(NoPhantom, [asked(filter_text="odd"), published(2), logged(2), got(2)]) == ["phantom"]
    assert kinds_by(NoPhantom, [asked(filter_text="odd"), published(3), logged(3), got(3)]) == []


def test_completeness_sees_a_skipped_message() -> None:
    """A message behind the position that did not come is lost."""
    assert kinds_by(Completeness, [*three(), got(1), got(3)]) == ["lost"]
    assert kinds_by(Completeness, [*three(), got(1), Passed(4.0, "s", P, 3)]) == ["lost", "lost"]


def test_completeness_sees_a_message_that_has_not_come_yet() -> None:
    """A message ahead of the position is stuck when the run is over."""
    assert kinds_by(Completeness, [*three(), got(1), got(2)]) == ["stuck"]


def test_completeness_sees_a_pubend_that_never_began() -> None:
    """A subscription must begin on every pubend."""
    assert kinds_by(Completeness, [asked(), published(1), logged(1)]) == ["stuck"]


def test_completeness_wants_only_what_matches_and_lies_after_the_start() -> None:
    """Neither other messages nor earlier ones are missed."""
    assert kinds_by(Completeness, [asked(filter_text="odd"), began(1), *three()[2:], got(3)]) == []


def test_completeness_accepts_what_was_told_to_be_gone() -> None:
    """An explicit gap is not a loss."""
    assert kinds_by(Completeness, [*three(), Gapped(3.0, "s", P, 0, 2), got(3)]) == []


def test_completeness_wants_nothing_after_the_end_of_a_subscription() -> None:
    """An ended subscription still must not have skipped anything."""
    assert kinds_by(Completeness, [*three(), got(1), Ended(4.0, "s")]) == []
    assert kinds_by(Completeness, [*three(), got(1), got(3), Ended(4.0, "s")]) == ["lost"]


def test_a_crash_goes_back_to_the_saved_positions() -> None:
    """With a file, what came after the saved position must come again, and is then no duplicate."""
    crashed = [*three(durable=True), got(1), Committed(3.0, "s", P, 1), got(2), Forgot(4.0, "s", {P: 1})]
    again = [*crashed, began(1, at=5.0), got(2), got(3)]
    assert check(History(again), odd_only) == []
    assert kinds_by(Completeness, [*crashed, began(1, at=5.0), got(3)]) == ["lost"]
    assert kinds_by(ExactlyOnce, [*crashed, began(1, at=5.0), got(1), got(2), got(3)]) == ["duplicated"]


def test_a_crash_without_a_file_goes_back_to_where_the_broker_resumes() -> None:
    """Acknowledged messages may come again then, but none that was not acknowledged may be left out."""
    crashed = [*three(durable=True), got(1), got(2), Committed(3.0, "s", P, 1), Forgot(4.0, "s", None)]
    assert check(History([*crashed, began(0, at=5.0), got(1), got(2), got(3)]), odd_only) == []
    assert kinds_by(Completeness, [*crashed, began(2, at=5.0), got(3)]) == ["lost"]


def test_what_was_confirmed_does_not_come_again_after_a_crash() -> None:
    """Without a file, what the broker has stored of the acknowledgements binds it; the rest may come again."""
    crashed = [*three(durable=True), got(1), got(2), Committed(3.0, "s", P, 2), Confirmed(3.5, "s", P, 1), Forgot(4.0, "s", None)]
    assert kinds_by(ExactlyOnce, [*crashed, began(0, at=5.0), got(1), got(2), got(3)]) == ["duplicated"]
    assert kinds_by(ExactlyOnce, [*crashed, began(1, at=5.0), got(2), got(3)]) == []


def test_a_gap_told_before_a_crash_stays_told() -> None:
    """The broker need not tell it again."""
    gap: list[Event] = [Freed(2.9, P, 2, retention=True), Gapped(3.0, "s", P, 0, 2)]
    assert check(History([*three(durable=True), *gap, Forgot(4.0, "s", None), began(2, at=5.0), got(3)]), odd_only) == []


def test_start_exactness_sees_a_message_that_got_a_tick_before_the_start() -> None:
    """What is published after the subscription was active must get a tick after its start."""
    assert kinds_by(StartExactness, [asked(), began(5, at=0.5), published(4, at=1.0), logged(4)]) == ["lost"]
    assert kinds_by(StartExactness, [asked(), published(4, at=0.2), began(5, at=0.5), logged(4)]) == []


def test_one_pubend_sees_a_message_in_two_logs() -> None:
    """A message lies in one pubend only."""
    assert kinds_by(OnePubend, [logged(1), logged(1, pubend=Q)]) == ["duplicated"]


def test_one_pubend_sees_a_message_twice_in_one_log() -> None:
    """A message that was sent again is written once."""
    assert kinds_by(OnePubend, [logged(1), logged(1, tick=2)]) == ["duplicated"]


def test_one_pubend_sees_a_message_under_two_ids() -> None:
    """Publishing one message again under another id is doubling it."""
    twin = Logged(3.0, Q, 8, message_id(8), b"1")
    assert kinds_by(OnePubend, [logged(1), twin]) == ["duplicated"]


def test_one_pubend_sees_ticks_and_ids_that_fall() -> None:
    """A log grows at its end, and a publisher's messages keep their order."""
    assert kinds_by(OnePubend, [logged(1, tick=5), logged(2, tick=4)]) == ["misordered"]
    assert kinds_by(OnePubend, [logged(2, tick=5), logged(1, tick=6)]) == ["misordered"]


def test_acknowledged_sees_an_acknowledgement_before_the_disk() -> None:
    """An acknowledged message is durable."""
    assert kinds_by(AcknowledgedIsDurable, [published(1), Acknowledged(2.0, message_id(1))]) == ["lost"]
    assert kinds_by(AcknowledgedIsDurable, [published(1), Acknowledged(1.9, message_id(1)), logged(1)]) == ["lost"]


def test_a_refused_message_is_never_taken() -> None:
    """Refused is refused for ever."""
    assert kinds_by(AcknowledgedIsDurable, [Refused(1.0, message_id(1)), logged(1)]) == ["phantom"]
    assert kinds_by(AcknowledgedIsDurable, [logged(1), Refused(3.0, message_id(1))]) == ["phantom"]


def test_publishers_converge_sees_a_message_nobody_answered() -> None:
    """At the end a publisher knows what became of its messages, unless it crashed."""
    assert kinds_by(PublishersConverge, [published(1), logged(1)]) == ["stuck"]
    assert kinds_by(PublishersConverge, [published(1), Acknowledged(2.0, message_id(1))]) == []
    assert kinds_by(PublishersConverge, [published(1), Abandoned(2.0, message_id(1))]) == []


def test_release_safety_sees_a_log_that_let_go_too_early() -> None:
    """What a durable subscription has not acknowledged stays, unless retention is over its bound."""
    held = [*three(durable=True), got(1), Committed(3.0, "s", P, 1)]
    assert kinds_by(ReleaseSafety, [*held, Freed(4.0, P, 2)]) == ["released"]
    assert kinds_by(ReleaseSafety, [*held, Freed(4.0, P, 1)]) == []
    assert kinds_by(ReleaseSafety, [*held, Freed(4.0, P, 2, retention=True)]) == []
    assert kinds_by(ReleaseSafety, [*held, Ended(3.5, "s"), Freed(4.0, P, 2)]) == []


def test_release_safety_lets_go_of_what_does_not_match() -> None:
    """Messages the filter does not want are not held."""
    events: list[Event] = [asked(durable=True, filter_text="odd"), began(), published(2), logged(2), Freed(4.0, P, 2)]
    assert kinds_by(ReleaseSafety, events) == []


def live_at(link: int = 7) -> list[Event]:
    """Three messages for a live subscription of a client that broker 1 knows by this link; the first is acknowledged."""
    return [asked(), Began(0.5, "s", P, 0, 1, link), *three()[2:], got(1), Committed(3.0, "s", P, 1)]


def test_release_safety_sees_a_log_that_did_not_wait_for_a_live_subscription() -> None:
    """It is held while its client is connected, and for the grace after that; then no more."""
    assert kinds_by(ReleaseSafety, [*live_at(), Freed(4.0, P, 2)]) == ["released"]
    parted = [*live_at(), Parted(4.0, 1, 7, held_until=9.0)]
    assert kinds_by(ReleaseSafety, [*parted, Freed(8.9, P, 2)]) == ["released"]
    assert kinds_by(ReleaseSafety, [*parted, Freed(9.1, P, 2)]) == []
    assert kinds_by(ReleaseSafety, [*parted, Ended(4.1, "s"), Freed(8.9, P, 2)]) == []


def test_release_safety_sees_a_log_that_did_not_wait_for_a_restarted_broker() -> None:
    """What a broker held stays held while it is down, and for the grace after it has started again."""
    down = [*live_at(), Parted(4.0, 1, 7, held_until=float("inf"))]
    assert kinds_by(ReleaseSafety, [*down, Freed(90.0, P, 2)]) == ["released"]
    back = [*down, Restarted(100.0, 1, held_until=105.0)]
    assert kinds_by(ReleaseSafety, [*back, Freed(104.0, P, 2)]) == ["released"]
    assert kinds_by(ReleaseSafety, [*back, Freed(106.0, P, 2)]) == []


def test_a_start_that_was_on_its_way_does_not_hold_longer_than_its_broker_says() -> None:
    """The broker noticed the loss of the connection before the client heard where its subscription starts."""
    late = [asked(), *three()[2:], Parted(0.4, 1, 7, held_until=1.0), Began(0.5, "s", P, 0, 1, 7)]
    assert kinds_by(ReleaseSafety, [*late, Freed(4.0, P, 2)]) == []


def test_a_gap_of_a_live_subscription_must_be_earned_after_a_disconnect_too() -> None:
    """What went while it was held may not be missing when it comes back within its time."""
    gap = Gapped(8.0, "s", P, 1, 2)
    parted = [*live_at(), Parted(4.0, 1, 7, held_until=6.0)]
    assert kinds_by(GapsAreEarned, [*parted, Freed(5.0, P, 2), gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*parted, Freed(7.0, P, 2), gap]) == []
    assert kinds_by(GapsAreEarned, [*parted, Freed(7.0, P, 2), Gapped(8.0, "s", P, 1, 3)]) == ["released"]


def test_a_gap_must_not_cover_what_was_delivered() -> None:
    """The application has the first message: it is not gone."""
    gone = [*live_at(), Freed(4.0, P, 2, retention=True)]
    assert kinds_by(GapsAreEarned, [*gone, Gapped(5.0, "s", P, 0, 2)]) == ["released"]
    assert kinds_by(GapsAreEarned, [*gone, Gapped(5.0, "s", P, 1, 2)]) == []


def test_logs_are_released_when_nobody_needs_them() -> None:
    """A log that still holds what everybody acknowledged, a while after, is never released."""
    done = [*three(durable=True), got(1), got(2), got(3)]
    acknowledged = [*done, Committed(4.0, "s", P, 3), Remains(90.0, P, 2)]
    assert kinds_by(LogsAreReleased, acknowledged) == ["kept"]
    assert kinds_by(LogsAreReleased, [*done, Committed(4.0, "s", P, 1), Remains(90.0, P, 2)]) == []
    assert kinds_by(LogsAreReleased, [*done, Ended(5.0, "s"), Discarded(5.1, "s"), Remains(90.0, P, 2)]) == ["kept"]
    assert kinds_by(LogsAreReleased, [*done, Ended(5.0, "s"), Remains(90.0, P, 2)]) == [], "its home may not have heard of it"
    deleted: list[Event] = [*done, Ended(5.0, "s"), Discarded(5.1, "s", 1)]
    assert kinds_by(LogsAreReleased, [*deleted, DiskLost(5.2, 1, ()), Remains(90.0, P, 2)]) == [], "its deletion is lost, too"
    assert kinds_by(LogsAreReleased, [*deleted, DiskLost(5.2, 3, ()), Remains(90.0, P, 2)]) == ["kept"]


def test_converges_sees_what_did_not() -> None:
    """Whatever is open at the end of the liveness phase is a violation of its own."""
    assert kinds_by(Converges, [Settled(60.0, ("s is not active", "w does not know"))]) == ["stuck", "stuck"]
    assert kinds_by(Converges, [Settled(60.0, ())]) == []


def test_a_violation_names_its_checker() -> None:
    """So that a table of planted bugs can say who found them."""
    assert [violation.checker for violation in check(History([*three(), got(1), got(2), got(2), got(3)]), odd_only)] == [
        "ExactlyOnce"
    ]


def test_gaps_must_be_earned() -> None:
    """A gap is told only where the log let go, and to durable subscriptions only by retention."""
    gap = Gapped(5.0, "s", P, 0, 2)
    assert kinds_by(GapsAreEarned, [*three(), gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*three(durable=True), Freed(4.0, P, 2), gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*three(durable=True), Freed(4.0, P, 2, retention=True), gap]) == []
    assert kinds_by(GapsAreEarned, [*three(), Freed(4.0, P, 2), gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*three(), Disconnected(3.0, "s"), Freed(4.0, P, 2), gap]) == []


def test_a_broker_that_never_began_a_pubend_may_write_off_what_was_before() -> None:
    """It crashed within its first moments, when others knew of it already. Below its first message there was nothing."""
    late: list[Event] = [WrittenOff(2.5, P, 0, 4), Began(2.6, "s", P, 2, 1), Gapped(2.7, "s", P, 2, 4)]
    assert kinds_by(GapsAreEarned, [asked(durable=True), *late]) == []
    assert kinds_by(GapsAreEarned, [asked(durable=True), logged(5), *late]) == []
    assert kinds_by(GapsAreEarned, [asked(durable=True), logged(4), *late]) == ["released"]
    assert kinds_by(GapsAreEarned, [asked(durable=True), Began(2.4, "t", P, 2, 1), *late]) == ["released"]


def test_a_gap_may_reach_over_what_only_a_lost_home_knew_to_be_empty() -> None:
    """The log let go of what did not match. The home knew; the positions of the client are older."""
    gone = [*three(durable=True), got(1), Committed(3.5, "s", P, 1), RecordCreated(3.6, 1, "durable/"), Freed(4.0, P, 3)]
    gap = Gapped(5.0, "s", P, 1, 3)
    elsewhere: list[Event] = [Began(5.0, "s", Q, 0, 2), Gapped(5.0, "s", Q, 0, 7)]
    assert kinds_by(GapsAreEarned, [*gone, *elsewhere]) == ["released"]
    assert kinds_by(GapsAreEarned, [*gone, DiskLost(4.5, 1, ()), Confirmed(4.9, "s", P, 1), *elsewhere]) == []
    assert kinds_by(GapsAreEarned, [*gone, gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*gone, DiskLost(4.5, 2, ()), gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*gone, DiskLost(4.5, 1, ()), gap]) == []
    assert kinds_by(GapsAreEarned, [*gone, DiskLost(4.5, 1, ()), Gapped(5.0, "s", P, 1, 4)]) == ["released"]


def test_a_gap_over_a_damaged_record_is_as_wide_as_the_damage() -> None:
    """It may also join what else is gone, and nothing more."""
    damaged = [*three(durable=True), Spoiled(4.0, P, 1, 2)]
    assert kinds_by(GapsAreEarned, [*damaged, Gapped(5.0, "s", P, 1, 2)]) == []
    assert kinds_by(GapsAreEarned, [*damaged, Gapped(5.0, "s", P, 0, 2)]) == ["released"]
    assert kinds_by(GapsAreEarned, [*damaged, Gapped(5.0, "s", P, 1, 3)]) == ["released"]
    assert kinds_by(GapsAreEarned, [*damaged, Freed(4.5, P, 1, retention=True), Gapped(5.0, "s", P, 0, 2)]) == []
    assert kinds_by(Completeness, [*damaged, got(1), got(3)]) == ["lost"], "it is told, never silent"
    assert kinds_by(Completeness, [*damaged, got(1), Gapped(5.0, "s", P, 1, 2), got(3)]) == []


def test_nobody_is_told_that_a_later_message_is_gone() -> None:
    """What lies in a gap was decided before it was told."""
    gone = [*three(durable=True), Freed(4.0, P, 9, retention=True), Gapped(5.0, "s", P, 3, 9)]
    assert kinds_by(GapsAreEarned, gone) == []
    assert kinds_by(GapsAreEarned, [*gone, logged(4, tick=9, at=6.0)]) == ["released"]
    assert kinds_by(GapsAreEarned, [*gone, logged(4, tick=10, at=6.0)]) == []


def test_a_damaged_record_of_a_durable_subscription_forgets_what_was_confirmed() -> None:
    """Then it goes on from before, as far as its client has no positions; else what was confirmed never comes again."""
    confirmed: list[Event] = [Asked(0.5, "s", "odd", True, name="n"), began(), published(1), logged(1), got(1)]
    confirmed += [Committed(3.0, "s", P, 1), Confirmed(3.1, "s", P, 1)]
    again: list[Event] = [Forgot(4.0, "s", None), began(tick=0), got(1)]
    assert kinds_by(ExactlyOnce, [*confirmed, *again]) == ["duplicated"]
    assert kinds_by(ExactlyOnce, [*confirmed, RecordSpoiled(3.5, 1, "durable/n"), *again]) == []
    assert kinds_by(ExactlyOnce, [*confirmed, RecordSpoiled(3.5, 1, "durable/m"), *again]) == ["duplicated"]


def test_a_lost_disk_is_told_as_far_as_its_broker_wrote_it_off() -> None:
    """Never silently, no further, and only by a broker whose files were lost."""
    lost = [*three(durable=True), DiskLost(4.0, 1, (P,)), WrittenOff(4.5, P, 0, 9)]
    assert kinds_by(GapsAreEarned, [*lost, Gapped(5.0, "s", P, 1, 9)]) == []
    assert kinds_by(GapsAreEarned, [*lost, Gapped(5.0, "s", P, 1, 10)]) == ["released"]
    assert kinds_by(GapsAreEarned, [*three(durable=True), WrittenOff(4.5, P, 0, 9), Gapped(5.0, "s", P, 1, 9)]) == ["released"]
    early = [*three(durable=True), DiskLost(4.0, 1, (P,)), Gapped(4.4, "s", P, 1, 9), WrittenOff(4.5, P, 0, 9)]
    assert kinds_by(GapsAreEarned, early) == [], "it is told when it is found, and stored a little later"
    assert kinds_by(Completeness, [*lost, got(1), Passed(5.0, "s", P, 9)]) == ["lost", "lost"]
    later: list[Event] = [asked(), published(1), logged(1), DiskLost(4.0, 1, (P,)), began(at=5.0), Passed(6.0, "s", P, 9)]
    assert kinds_by(Completeness, later) == [], "it was gone before the subscription began"
    assert kinds_by(Completeness, [*lost, got(1), Gapped(5.0, "s", P, 1, 9)]) == []


def test_a_subscription_whose_home_lost_its_files_may_be_told_a_gap_over_all() -> None:
    """If its client has no position either, and until a home has confirmed something again."""
    events: list[Event] = [
        asked(durable=True),
        Began(0.5, "s", P, 0, 1, 7),
        published(1),
        logged(1),
        got(1),
        Committed(3.0, "s", P, 1),
    ]
    gap, forgot = Gapped(6.0, "s", P, 0, 1), Forgot(4.5, "s", None)
    again = Began(5.0, "s", P, 0, 2, 8)
    assert kinds_by(GapsAreEarned, [*events, DiskLost(4.0, 1, (Q,)), forgot, again, gap]) == []
    assert kinds_by(GapsAreEarned, [*events, DiskLost(4.0, 3, (Q,)), forgot, again, gap]) == ["released"]
    assert kinds_by(GapsAreEarned, [*events, DiskLost(4.0, 1, (Q,)), again, gap]) == ["released", "released"]
    confirmed: list[Event] = [again, Confirmed(5.2, "s", P, 1), Forgot(5.4, "s", None), Began(5.5, "s", P, 0, 2, 9)]
    assert kinds_by(GapsAreEarned, [*events, DiskLost(4.0, 1, (Q,)), *confirmed, gap]) == ["released", "released"]


def test_a_record_on_a_lost_disk_explains_a_gap_though_its_client_was_not_told_of_it() -> None:
    """The name exists for the others, and nobody knows whether its client heard that it is active."""
    named = Asked(0.0, "s", "TRUE", True, False, "n")
    events: list[Event] = [named, published(1), logged(1), RecordCreated(3.0, 1, "durable/n")]
    begin: list[Event] = [Began(5.0, "s", P, 0, 2, 8), Gapped(6.0, "s", P, 0, 1)]
    assert kinds_by(GapsAreEarned, [*events, DiskLost(4.0, 1, (Q,)), *begin]) == []
    assert kinds_by(GapsAreEarned, [*events, DiskLost(4.0, 3, (Q,)), *begin]) == ["released"]


def test_a_pubend_that_is_reached_late_may_be_told_as_lost_after_another_was_confirmed() -> None:
    """Where the subscription was in it is not known any better by then."""
    first: list[Event] = [Began(0.5, "s", pubend, 0, 1, 7) for pubend in (P, Q)]
    lost: list[Event] = [DiskLost(4.0, 1, ()), Forgot(4.5, "s", None), Began(5.0, "s", Q, 0, 2, 8), Confirmed(5.2, "s", Q, 3)]
    again: list[Event] = [Began(5.5, "s", P, 0, 2, 8), Gapped(6.0, "s", P, 0, 1)]
    events: list[Event] = [asked(durable=True), *first, published(1), logged(1), *lost, *again]
    assert kinds_by(GapsAreEarned, events) == []
    assert kinds_by(GapsAreEarned, [*events, Forgot(7.0, "s", None), *again]) == ["released"]


def test_what_was_lost_with_a_disk_may_be_taken_again() -> None:
    """Its publisher had not heard of it; otherwise a message lies in one log once, and a refused one in none."""
    events: list[Event] = [published(1), logged(1)]
    assert kinds_by(OnePubend, [*events, DiskLost(3.0, 1, (P,)), logged(1, tick=9, at=4.0)]) == []
    assert kinds_by(OnePubend, [*events, DiskLost(3.0, 1, (Q,)), logged(1, tick=9, at=4.0)]) == ["duplicated"]
    assert kinds_by(AcknowledgedIsDurable, [*events, DiskLost(3.0, 1, (P,)), Refused(4.0, message_id(1))]) == []
    assert kinds_by(AcknowledgedIsDurable, [*events, DiskLost(3.0, 1, (Q,)), Refused(4.0, message_id(1))]) == ["phantom"]


def test_nobody_waits_for_the_messages_of_a_retired_broker() -> None:
    """What lies ahead will never come; what was passed silently is lost all the same."""
    retired = Retired(4.0, 1, (P,))
    assert kinds_by(Completeness, [*three(), got(1), retired]) == []
    assert kinds_by(Completeness, [*three(), got(1), Retired(4.0, 2, (Q,))]) == ["stuck", "stuck"]
    assert kinds_by(Completeness, [*three(), got(1), got(3), retired]) == ["lost"]


def test_bounded_memory_sees_a_figure_over_its_bound() -> None:
    """Each figure keeps its bound; one without a bound may be anything."""
    assert kinds_by(BoundedMemory, [Measured(1.0, 1, {"cache_bytes": (11, 10), "links": (99, None)})]) == ["unbounded"]
    assert kinds_by(BoundedMemory, [Measured(1.0, 1, {"cache_bytes": (10, 10)})]) == []


def test_reservations_agree_sees_a_leak_and_a_half_admission() -> None:
    assert kinds_by(ReservationsAgree, [ReservationsCompared(1.0, ("one", "another"))]) == ["misreserved", "misreserved"]
    assert kinds_by(ReservationsAgree, [ReservationsCompared(1.0, ())]) == []


def test_throttles_end_sees_a_rate_that_nobody_uses() -> None:
    assert kinds_by(ThrottlesEnd, [StillThrottled(1.0, 256, 5.0, 2)]) == ["stuck"]
    assert kinds_by(ThrottlesEnd, []) == []


def shared(*numbers: int, key: str = "") -> list[Event]:
    """A shared subscription, and messages that are logged for it."""
    events: list[Event] = [SharedAsked(0.0, "g", "TRUE", key), SharedBegan(0.5, "g", P, 0)]
    return events + [event for number in numbers for event in (published(number), logged(number))]


def handed(number: int, link: int = 1) -> Handed:
    return Handed(3.0, 1, link, 1, "g", P, number, message_id(number))


def taken(number: int, link: int = 1) -> Taken:
    return Taken(3.1, "g", link, 1, P, (number,))


def finished(number: int, member: str = "a") -> Finished:
    return Finished(3.2, "g", member, P, number)


def test_shared_exactly_once_sees_what_an_acknowledged_message_must_not_do() -> None:
    """Given to two members, given again after it was acknowledged, acknowledged by two; but not given again after a loss."""
    assert kinds_by(SharedExactlyOnce, [*shared(1), handed(1), handed(1, link=2)]) == ["duplicated"]
    assert kinds_by(SharedExactlyOnce, [*shared(1), handed(1), taken(1), finished(1), handed(1, link=2)]) == ["duplicated"]
    assert kinds_by(SharedExactlyOnce, [*shared(1), handed(1), taken(1), finished(1), finished(1, "b")]) == ["duplicated"]
    lost = [*shared(1), handed(1), MemberGone(3.1, 1, 1), handed(1, link=2), taken(1, link=2), finished(1, "b")]
    assert kinds_by(SharedExactlyOnce, lost) == []
    spoiled = [*shared(1), handed(1), taken(1), finished(1), RecordSpoiled(3.3, 1, "durable/g"), handed(1)]
    assert kinds_by(SharedExactlyOnce, spoiled) == []


def test_shared_order_sees_a_key_that_goes_on_too_early_or_back() -> None:
    """`n` is the same in both messages."""
    events: list[Event] = [SharedAsked(0.0, "g", "TRUE", "n"), SharedBegan(0.5, "g", P, 0)]
    for number in (1, 2):
        events += [Published(1.0, message_id(number), {"n": 7}, b""), logged(number)]
    assert kinds_by(SharedOrder, [*events, handed(1), handed(2)]) == ["misordered"]
    assert kinds_by(SharedOrder, [*events, handed(1), taken(1), handed(2), handed(1)]) == ["misordered"]
    assert kinds_by(SharedOrder, [*events, handed(1), taken(1), handed(2)]) == []
    assert kinds_by(SharedOrder, [*events, handed(1), Freed(3.0, P, 1, retention=True), handed(2)]) == []


def test_shared_completeness_sees_what_nobody_finished_and_what_was_not_due() -> None:
    """What was told to be gone is excused, if something may be gone."""
    done: list[Event] = [handed(1), taken(1), finished(1)]
    assert kinds_by(SharedCompleteness, [*shared(1, 2), *done]) == ["lost"]
    assert kinds_by(SharedCompleteness, [*shared(1), *done]) == []
    gap = SharedGapped(3.5, "g", P, 1, 2)
    assert kinds_by(SharedCompleteness, [*shared(1, 2), *done, gap]) == ["released"]
    assert kinds_by(SharedCompleteness, [*shared(1, 2), *done, Spoiled(3.4, P, 1, 2), gap]) == []
    assert kinds_by(SharedCompleteness, [*shared(1), *done, published(3), handed(3)]) == ["phantom"]
    assert kinds_by(SharedCompleteness, [SharedAsked(0.0, "g", "TRUE", ""), published(1), logged(1)]) == ["stuck"]


def test_every_checker_is_tested_here() -> None:
    """A checker that no test makes fail is a defect."""
    assert {
        ExactlyOnce,
        Order,
        NoPhantom,
        Completeness,
        StartExactness,
        SharedExactlyOnce,
        SharedOrder,
        SharedCompleteness,
        OnePubend,
        AcknowledgedIsDurable,
        PublishersConverge,
        Converges,
        ReleaseSafety,
        GapsAreEarned,
        LogsAreReleased,
        BoundedMemory,
        ReservationsAgree,
        ThrottlesEnd,
        TracksAreTrue,  # in test_tracking.py
    } == set(CHECKERS)
