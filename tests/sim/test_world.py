"""Virtual time."""

from __future__ import annotations

from postroad.sim.world import World


def test_events_happen_in_order_of_time_and_then_of_creation() -> None:
    """Two events at one time happen in the order they were made."""
    world, seen = World(1), list[object]()
    world.at(2.0, seen.append, "late")
    world.at(1.0, seen.append, "first")
    world.at(1.0, seen.append, "second")
    world.run(3.0)
    assert seen == ["first", "second", "late"]
    assert world.now == 3.0


def test_nothing_happens_after_the_end_of_a_run() -> None:
    """What is due later waits for the next run."""
    world, seen = World(1), list[object]()
    world.at(2.0, seen.append, "later")
    world.run(1.0)
    assert seen == []
    world.run(2.0)
    assert seen == ["later"]


def test_a_cancelled_timer_does_not_ring() -> None:
    """A timer that was called off does nothing."""
    world, seen = World(1), list[object]()
    timer = world.timer(1.0, lambda: seen.append("rang"))
    timer.cancel()
    world.run(2.0)
    assert seen == []


def test_streams_of_chance_depend_on_seed_and_name_only() -> None:
    """Drawing from one stream does not move another."""
    first, second = World(5), World(5)
    first.chance("other").random()
    assert first.chance("faults").random() == second.chance("faults").random()
    assert World(6).chance("faults").random() != second.chance("faults").random()


def test_the_digest_tells_different_stories_apart() -> None:
    """The digest depends on what happened and when."""
    digests = set()
    for at, text in ((1.0, "a"), (1.0, "b"), (2.0, "a")):
        world = World(1)
        world.at(at, world.note, "kind", text)
        world.run(3.0)
        digests.add(world.digest)
    assert len(digests) == 3
