"""A broker returns with its id and without its files: it is recognised, and what is lost is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from postroad.core.protocol.packets import pubend_id
from postroad.sim.brokers import WALL_MS_AT_START
from postroad.sim.clients import Habits
from postroad.sim.history import Began, Delivered, Gapped, Logged, Refused, Sent
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedConfig

P1 = pubend_id(1)
CONFIG = TrackedConfig(silence_s=0.5, newcomer_wait_s=2.0)


def line(config: TrackedConfig = CONFIG) -> Overlay:
    """Join 1, 2 and 3, with a publisher at each end."""
    overlay = Overlay(1, config=config)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("writer", 1)
    return overlay


def publish(overlay: Overlay, client: str, begin: float, end: float) -> None:
    for step in range(int((end - begin) * 10)):
        payload = f"{client} {begin + step / 10:.1f}".encode()
        overlay.at(begin + step / 10, partial(overlay.clients[client].publish, {"n": step}, payload))


def follow(overlay: Overlay, client: str, when: float, name: str | None = None) -> None:
    filter_ = overlay.filter(everything())
    overlay.at(when, lambda: overlay.clients[client].follow(filter_, subscription=name or client, name=name))


def lose(overlay: Overlay, broker: int, at: float, back: float, before: Callable[[], object] = lambda: None) -> None:
    """Kill a broker, take its files away, and start it again."""

    def gone() -> None:
        overlay.node(broker).crash()
        overlay.node(broker).disk.lose()

    def start() -> None:
        before()
        overlay.node(broker).start()

    overlay.at(at, gone)
    overlay.at(back, start)


def told(overlay: Overlay, subscription: str) -> list[tuple[int, int, int]]:
    events = [each for each in overlay.history if isinstance(each, Gapped) and each.subscription == subscription]
    return [(each.pubend, each.lo, each.hi) for each in events]


def received(overlay: Overlay, subscription: str) -> set[bytes]:
    return {each.payload for each in overlay.history if isinstance(each, Delivered) and each.subscription == subscription}


def assert_nothing_is_silent(overlay: Overlay) -> None:
    """What did not come was told; nothing came twice or out of order. That the gaps are needed is for the tests to say."""
    assert overlay.settle(30.0)
    assert [each for each in overlay.violations() if each.kind != "released"] == []


def logged_after(overlay: Overlay, seconds: float) -> set[bytes]:
    return {each.payload for each in overlay.history if isinstance(each, Logged) and each.at > seconds}


@pytest.mark.parametrize("restarts", [0, 2])
def test_what_nobody_got_becomes_a_gap_for_a_live_durable_subscriber(restarts: int) -> None:
    """All acknowledged messages of the former life that it had not got lie in the gap, and all of the new life come."""
    overlay = line()
    overlay.client("reader", 3)
    follow(overlay, "reader", 1.0, "kept")
    for number in range(restarts):
        overlay.at(1.2 + number / 5, overlay.node(1).crash)
        overlay.at(1.25 + number / 5, overlay.node(1).start)
    publish(overlay, "writer", 2.0, 6.0)
    overlay.at(3.0, overlay.cable(1, 2).cut)
    lose(overlay, 1, 6.5, 7.0)
    overlay.at(6.8, overlay.cable(1, 2).heal)
    publish(overlay, "writer", 10.0, 12.0)
    overlay.run(13.0)
    assert_nothing_is_silent(overlay)
    assert len(logged_after(overlay, 0.0) - received(overlay, "kept")) >= 25
    assert logged_after(overlay, 6.9) <= received(overlay, "kept")
    ((pubend, lo, hi),) = told(overlay, "kept")
    assert pubend == P1
    if not restarts:  # else the ticks are ahead of time
        assert (lo >> 16) - WALL_MS_AT_START == pytest.approx(3000, abs=600)
    assert (hi >> 16) - WALL_MS_AT_START >= 7000


def test_a_durable_subscriber_that_was_away_is_told_when_it_returns() -> None:
    """Its home remembers where it was, and the returned broker that everything up to its new first tick is lost."""
    overlay = line()
    overlay.client("reader", 3, habits=Habits(keeps_file=False))
    follow(overlay, "reader", 1.0, "kept")
    publish(overlay, "writer", 2.0, 6.0)
    overlay.at(3.0, overlay.clients["reader"].crash)
    lose(overlay, 1, 6.5, 7.0)
    publish(overlay, "writer", 9.0, 11.0)
    overlay.at(10.0, overlay.clients["reader"].start)
    overlay.run(13.0)
    assert_nothing_is_silent(overlay)
    assert logged_after(overlay, 6.9) <= received(overlay, "kept")
    assert [gap[0] for gap in told(overlay, "kept")] == [P1]


@pytest.mark.parametrize("restarts", [0, 1, 4])
def test_subscriptions_at_the_returned_broker_become_active(restarts: int) -> None:
    """Its incarnation fell, and it outbids its former life; later starts stay above."""
    overlay = line()
    overlay.client("other", 3)
    for number in range(restarts):
        overlay.at(1.0 + number / 5, overlay.node(1).crash)
        overlay.at(1.1 + number / 5, overlay.node(1).start)
    lose(overlay, 1, 4.0, 4.5)
    overlay.client("reader", 1)
    follow(overlay, "reader", 5.0)
    publish(overlay, "other", 8.0, 10.0)
    overlay.run(12.0)
    assert len(received(overlay, "reader")) == 20
    machine = overlay.node(1).machine
    assert machine is not None
    assert machine.machine._context.incarnation > restarts + 1
    assert_nothing_is_silent(overlay)


@pytest.mark.parametrize("back_ms", [-500, -8000, -3_600_000])
def test_new_messages_lie_above_all_that_was_announced(back_ms: int) -> None:
    """Though the new machine's clock is behind: the neighbours say how far the pubend was."""
    overlay = line()
    overlay.client("reader", 3)
    follow(overlay, "reader", 1.0)
    publish(overlay, "writer", 2.0, 6.0)
    lose(overlay, 1, 6.5, 7.0, before=lambda: overlay.node(1).step_clock(back_ms))
    publish(overlay, "writer", 10.0, 12.0)
    overlay.run(14.0)
    assert logged_after(overlay, 6.9) <= received(overlay, "reader")
    assert overlay.violations() == [] or {each.kind for each in overlay.violations()} == {"released"}


def test_files_that_were_replaced_by_an_old_copy_are_recognised() -> None:
    """What the copy holds is delivered, what came after it is told as a gap."""
    overlay = line()
    overlay.client("reader", 3, habits=Habits(keeps_file=False))
    overlay.client("live", 2)
    follow(overlay, "live", 1.0)
    follow(overlay, "reader", 1.0, "kept")
    publish(overlay, "writer", 2.0, 8.0)
    overlay.at(3.0, overlay.clients["reader"].crash)
    saved: list[tuple[object, ...]] = []
    disk = overlay.node(1).disk

    def save() -> None:
        logs = {
            pubend: replace(log, batches=[*log.batches], last_ticks=[*log.last_ticks], publishers={**log.publishers})
            for pubend, log in disk.logs.items()
        }
        saved.append((logs, {**disk.metadata}, disk.incarnation))

    overlay.at(4.0, save)

    def restore() -> None:
        disk.logs, disk.metadata, disk.incarnation = saved[0]  # type: ignore[assignment]

    overlay.at(9.0, overlay.node(1).crash)
    overlay.at(9.5, restore)
    overlay.at(30.0, overlay.node(2).crash)  # its cache has all
    overlay.at(30.5, overlay.node(2).start)
    overlay.at(29.0, overlay.node(1).start)
    publish(overlay, "writer", 32.0, 33.0)
    overlay.at(34.0, overlay.clients["reader"].start)
    overlay.run(40.0)
    assert_nothing_is_silent(overlay)
    assert logged_after(overlay, 10.0) <= received(overlay, "kept")


@pytest.mark.parametrize("wait_s", [0.0, 2.0])
def test_a_new_broker_loses_nothing(wait_s: float) -> None:
    """Brokers that are new to each other, restart and link again tell nobody of a gap."""
    overlay = line(TrackedConfig(silence_s=0.5, newcomer_wait_s=wait_s))
    overlay.client("reader", 3)
    follow(overlay, "reader", 1.0, "kept")
    publish(overlay, "writer", 0.1, 6.0)
    overlay.at(2.0, overlay.cable(1, 2).reset)
    overlay.at(2.5, overlay.node(2).crash)
    overlay.at(2.7, overlay.node(2).start)
    overlay.at(4.0, overlay.node(1).crash)
    overlay.at(4.3, overlay.node(1).start)
    overlay.run(8.0)
    assert overlay.settle(20.0)
    assert overlay.violations() == []
    assert told(overlay, "kept") == []


@pytest.mark.parametrize("broker", [1, 3])
def test_a_durable_subscription_whose_home_lost_its_record_is_told(broker: int) -> None:
    """Its client, which kept no positions, gets a gap in every pubend at its home or elsewhere, and then what is new."""
    overlay = line()
    overlay.client("other", 3)
    overlay.client("reader", 1, habits=Habits(keeps_file=False))
    follow(overlay, "reader", 1.0, "kept")
    publish(overlay, "other", 2.0, 4.0)
    overlay.at(3.0, overlay.clients["reader"].crash)
    lose(overlay, 1, 4.0, 4.5)
    overlay.at(6.0, lambda: overlay.clients["reader"].move([overlay.node(broker)]))
    overlay.at(6.1, overlay.clients["reader"].start)
    publish(overlay, "other", 8.0, 9.0)
    publish(overlay, "writer", 8.0, 9.0)
    overlay.run(12.0)
    assert {gap[0] for gap in told(overlay, "kept")} == {pubend_id(1), pubend_id(2), pubend_id(3)}
    assert logged_after(overlay, 7.0) <= received(overlay, "kept")
    assert_nothing_is_silent(overlay)


def test_a_durable_subscription_goes_on_from_the_positions_of_its_client() -> None:
    """Its home lost the record, but not the client: nothing is missed, nothing comes twice."""
    overlay = line()
    overlay.client("other", 3)
    overlay.client("reader", 1, habits=Habits(keeps_file=True))
    follow(overlay, "reader", 1.0, "kept")
    publish(overlay, "other", 2.0, 8.0)
    overlay.at(3.0, overlay.clients["reader"].crash)
    lose(overlay, 1, 4.0, 4.5)
    overlay.at(6.1, overlay.clients["reader"].start)
    overlay.run(12.0)
    assert {gap[0] for gap in told(overlay, "kept")} <= {P1}
    assert logged_after(overlay, 0.0) <= received(overlay, "kept")
    assert_nothing_is_silent(overlay)


@pytest.mark.parametrize("keeps_file", [False, True])
def test_a_broker_that_is_alone_believes_its_clients(keeps_file: bool) -> None:
    """Nobody else remembers; a position before the first tick can only come from a former life."""
    overlay = Overlay(1, config=CONFIG)
    overlay.broker(1)
    overlay.client("writer", 1)
    overlay.client("reader", 1, habits=Habits(keeps_file=keeps_file))
    overlay.client("behind", 1)
    follow(overlay, "reader", 1.0)
    follow(overlay, "behind", 1.0)
    publish(overlay, "writer", 2.0, 6.0)
    overlay.at(3.0, overlay.clients["behind"].cut_off)
    overlay.at(3.0, lambda: overlay.clients["behind"].pause_reading(True))
    lose(overlay, 1, 5.0, 5.5)
    publish(overlay, "writer", 8.0, 9.0)
    overlay.run(12.0)
    for name in ("reader", "behind"):
        assert [gap[0] for gap in told(overlay, name)] == [P1]
        assert logged_after(overlay, 5.5) <= received(overlay, name)
    assert_nothing_is_silent(overlay)


def test_messages_of_the_new_life_are_kept_where_the_loss_is_recognised_late() -> None:
    """The broker began before a neighbour could tell: the lost range ends where it began."""
    overlay = line(TrackedConfig(silence_s=0.5, newcomer_wait_s=0.2))
    overlay.client("reader", 3)
    follow(overlay, "reader", 1.0, "kept")
    publish(overlay, "writer", 2.0, 6.0)
    overlay.at(5.0, overlay.cable(1, 2).cut)
    lose(overlay, 1, 6.5, 7.0)
    publish(overlay, "writer", 7.1, 9.1)
    overlay.at(11.0, overlay.cable(1, 2).heal)
    overlay.run(15.0)
    assert logged_after(overlay, 6.9) <= received(overlay, "kept")
    ((_, lo, hi),) = told(overlay, "kept")
    assert (lo >> 16) - WALL_MS_AT_START <= 5000
    assert 6500 <= (hi >> 16) - WALL_MS_AT_START <= 8200
    assert_nothing_is_silent(overlay)


def test_a_subscription_that_ends_before_its_broker_has_begun_leaves_nothing_behind() -> None:
    """What its client says of it waits behind it: else it would begin afterwards, for nobody, and hold the logs."""
    overlay = line()
    overlay.client("reader", 1)
    overlay.at(2.9, overlay.cable(1, 2).cut)
    lose(overlay, 1, 3.0, 3.5)
    follow(overlay, "reader", 4.5)
    overlay.at(5.0, lambda: overlay.clients["reader"].end(overlay.clients["reader"].following[0]))
    overlay.at(6.5, overlay.cable(1, 2).heal)
    overlay.run(10.0)
    machine = overlay.node(1).machine
    assert machine is not None
    assert machine.stats()["subscriptions"] == 0


@pytest.mark.parametrize("alive_s", [0.6, 0.9, 1.5])
def test_a_publisher_of_the_former_life_keeps_its_id_through_another_start(alive_s: float) -> None:
    """The next start denied its id: messages that were taken were reported as refused, and the id was assigned again."""
    overlay = line()
    overlay.client("late", 1)
    publish(overlay, "writer", 2.0, 7.0)
    lose(overlay, 1, 4.0, 4.5)
    overlay.at(4.5 + alive_s, overlay.node(1).crash)
    overlay.at(4.7 + alive_s, overlay.node(1).start)
    publish(overlay, "late", 7.0, 9.0)
    overlay.run(12.0)
    assert overlay.settle(30.0)
    assert overlay.violations() == []
    assert not any(isinstance(each, Refused) for each in overlay.history)
    numbers = {each.payload[:4]: each.id[:4] for each in overlay.history if isinstance(each, Logged)}
    assert numbers[b"late"] != numbers[b"writ"]


def test_a_clock_far_behind_does_not_let_a_new_life_repeat_ticks_that_no_other_broker_heard() -> None:
    """Only its own clients followed the stream; its neighbour remembers the horizon that it was told, through a restart."""
    overlay = line()
    overlay.client("reader", 1)
    follow(overlay, "reader", 1.0)
    publish(overlay, "writer", 1.5, 6.0)
    overlay.at(3.0, lambda: overlay.node(1).step_clock(-40_000))
    overlay.at(5.0, overlay.node(2).crash)
    overlay.at(5.3, overlay.node(2).start)
    overlay.at(5.95, overlay.clients["reader"].cut_off)
    overlay.at(6.0, overlay.node(1).crash)
    overlay.at(6.1, partial(overlay.node(1).lose, replaces=False))
    overlay.at(7.0, overlay.node(1).start)
    publish(overlay, "writer", 10.0, 12.0)
    overlay.run(14.0)
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert logged_after(overlay, 6.9) <= received(overlay, "reader")


def test_a_broker_that_lost_its_files_does_not_vouch_that_a_name_is_new() -> None:
    """With one that never heard of the name it was a majority: the name began as new, and messages were skipped."""
    overlay = Overlay(1, config=CONFIG)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(1, 3)
    overlay.client("writer", 1)
    overlay.client("reader", 1, habits=Habits(keeps_file=False))
    overlay.at(0.9, overlay.cable(1, 3).cut)
    follow(overlay, "reader", 1.0, "kept")
    overlay.at(3.0, overlay.clients["reader"].crash)
    publish(overlay, "writer", 3.5, 5.0)
    overlay.at(5.5, overlay.cable(1, 2).cut)
    overlay.at(5.5, overlay.cable(1, 3).heal)
    lose(overlay, 1, 6.5, 7.0)
    overlay.at(8.0, overlay.clients["reader"].start)
    overlay.run(14.0)
    assert not any(isinstance(each, Began) and each.at > 7.0 for each in overlay.history), "only broker 2 knows of the name"
    overlay.cable(1, 2).heal()
    assert_nothing_is_silent(overlay)
    assert P1 in [pubend for pubend, _, _ in told(overlay, "kept")]


def test_what_a_broker_sends_is_of_the_life_that_tracks_it() -> None:
    """After its files were lost it counts starts from the beginning, and outbids: then the count on its disk is no life."""
    overlay = line()
    overlay.client("reader", 1)
    follow(overlay, "reader", 1.0)
    publish(overlay, "writer", 2.0, 12.0)
    lose(overlay, 1, 3.5, 4.0)
    overlay.at(9.0, overlay.node(1).crash)
    overlay.at(9.1, overlay.node(1).start)
    overlay.run(13.0)
    assert_nothing_is_silent(overlay)
    sent = {each.incarnation for each in overlay.history if isinstance(each, Sent) and each.broker == 1}
    machine = overlay.node(1).machine
    assert machine is not None
    assert sent == {1, machine.machine._context.incarnation}
