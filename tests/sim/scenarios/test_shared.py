"""Shared subscriptions under schedules of faults: members and the home crash, leave, and are cut off."""

from __future__ import annotations

import pytest

from postroad.errors import DurableBusyError, DurableFilterError, DurableKindError
from postroad.sim.history import Finished, Handed
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import above, everything
from postroad.sim.workers import WorkerNode

MESSAGES = 60


def overlay_with(*workers: str, key: str = "k", work_s: float = 0.05) -> tuple[Overlay, list[WorkerNode]]:
    """Three brokers in a line, a writer at 1, and workers; the first one is at broker 3, which becomes the home."""
    overlay = Overlay(1, story=True)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    text = overlay.filter(everything())
    writer = overlay.client("writer", 1)
    made = [overlay.worker(name, 3, 2, 1) for name in workers]
    for index, worker in enumerate(made):
        overlay.at(1.0 + index * 0.3, lambda worker=worker: worker.work(text, "g", key=key, work_s=(work_s,)))  # type: ignore[misc]
    for n in range(MESSAGES):
        overlay.at(2.0 + n * 0.03, lambda n=n: writer.publish({"k": n % 5}, b"%d" % n))  # type: ignore[misc]
    return overlay, made


def finish(overlay: Overlay, until: float = 6.0) -> None:
    overlay.run(until)
    overlay.heal()
    assert overlay.settle(60.0), list(overlay.open_ends())
    assert overlay.violations() == []
    assert len({event.tick for event in overlay.history if isinstance(event, Finished)}) == MESSAGES


def test_members_share_the_messages() -> None:
    """Each message goes to one member, and both get some."""
    overlay, _ = overlay_with("a", "b")
    finish(overlay)
    assert {event.member for event in overlay.history if isinstance(event, Finished)} == {"a", "b"}
    assert sum(isinstance(event, Handed) for event in overlay.history) == MESSAGES


def test_what_a_crashed_member_held_goes_to_another() -> None:
    """It holds three messages for ever, and then crashes."""
    overlay, (first, _) = overlay_with("a", "b", key="", work_s=0.01)
    text = overlay.filter(everything())
    stuck = overlay.worker("stuck", 3)
    overlay.at(1.8, lambda: stuck.work(text, "g", work_s=(1_000.0,)))
    overlay.at(5.0, lambda: stuck.leave_group(stuck.working[0]))
    overlay.at(3.0, first.crash)
    overlay.at(3.5, first.start_if_down)
    finish(overlay)


def test_the_home_crashes_again_and_again() -> None:
    """What was acknowledged before is not handed out after, and the order by key holds."""
    overlay, _ = overlay_with("a", "b", "c")
    for at in (2.5, 3.1, 3.8):
        overlay.at(at, overlay.node(3).crash)
        overlay.at(at + 0.2, overlay.node(3).start_if_down)
    finish(overlay)


def test_a_member_elsewhere_goes_to_the_home() -> None:
    """It dials broker 1 first, which names the home."""
    overlay, _ = overlay_with("a")
    other = overlay.worker("other", 1, 2)
    overlay.at(1.5, lambda: other.work(overlay.filter(everything()), "g", key="k"))
    finish(overlay)
    assert {event.broker for event in overlay.history if isinstance(event, Handed)} == {3}
    assert "other" in {event.member for event in overlay.history if isinstance(event, Finished)}


def test_two_brokers_that_create_the_name_at_once_make_one_home() -> None:
    """Both workers end up there."""
    overlay = Overlay(2)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    text = overlay.filter(everything())
    workers = [overlay.worker(name, broker) for name, broker in (("a", 1), ("b", 3))]
    writer = overlay.client("writer", 2)
    for worker in workers:
        overlay.at(1.0, lambda worker=worker: worker.work(text, "g"))  # type: ignore[misc]
    for n in range(20):
        overlay.at(4.0 + n * 0.01, lambda n=n: writer.publish({"n": n}, b"%d" % n))  # type: ignore[misc]
    overlay.run(5.0)
    assert overlay.settle(60.0), list(overlay.open_ends())
    assert overlay.violations() == []
    assert len({event.broker for event in overlay.history if isinstance(event, Handed)}) == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"key": "other"}, DurableKindError), ({"filter_text": "price > 5"}, DurableFilterError)],
)
def test_a_member_that_wants_something_else_is_refused(changes: dict[str, str], error: type[Exception]) -> None:
    """Another key or another filter, beside a member and after all have left."""
    overlay, (first,) = overlay_with("a")
    other = overlay.worker("other", 3)
    overlay.filter(above("price", 5))
    wanted = {"filter_text": "TRUE", "key": "k", **changes}
    overlay.run(1.5)
    for _ in range(2):
        other.work(wanted["filter_text"], "g", key=wanted["key"])
        overlay.run(overlay.world.now + 1.0)
        assert other.working[-1].number is None
        other.working.pop()
        first.leave_group(first.working[0])
    assert any(error.__name__ in line.text for line in overlay.world.story or ())


def test_only_the_last_member_can_delete_it() -> None:
    """While there are others, the deletion is refused; afterwards the name is free."""
    overlay, (first, second) = overlay_with("a", "b")
    overlay.run(1.8)
    second.leave_group(second.working[0], forget=True)
    overlay.run(1.9)
    assert second.working[0].deleting
    assert any(DurableBusyError.__name__ in line.text for line in overlay.world.story or ())
    first.leave_group(first.working[0], forget=True)
    overlay.run(3.0)
    assert not first.working[0].deleting
    machine = overlay.node(3).machine
    assert machine is not None
    assert machine.machine.sharing.members_of("g") == 0
