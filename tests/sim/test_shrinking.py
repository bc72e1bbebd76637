"""A seed that fails is explained, and made as small as it can be."""

from __future__ import annotations

from click.testing import CliRunner
from tests.mutants import bugs_of_brokers
from tests.mutants.planting import MUTANTS

from postroad.cli import main
from postroad.sim.checkers import Violation
from postroad.sim.shrinking import _fewest, shrink
from postroad.sim.soak import play, run_seed
from postroad.sim.violation_story import explain
from postroad.sim.workload import Shape

BUG = MUTANTS[bugs_of_brokers.start_a_second_late.__name__]
SMALL = Shape(busy_s=6.0)


def failing_seed() -> int:
    return next(seed for seed in range(20) if not run_seed(seed, SMALL).sound)


def test_a_failing_seed_becomes_smaller_and_still_fails() -> None:
    """What is left fails in the same way, with fewer faults and clients."""
    with BUG.planted():
        found = shrink(failing_seed(), SMALL)
        assert found is not None
        assert len(found.faults) < found.faults_before
        assert len(found.clients) < found.clients_before
        smaller = Shape(busy_s=6.0, faults=found.faults, clients=found.clients)
        assert found.violation.checker in {each.checker for each in play(found.seed, smaller)[0].violations()}
    assert f"--seed {found.seed}" in found.command


def test_a_sound_seed_is_not_shrunk() -> None:
    """There is nothing to look for."""
    assert shrink(3, Shape(busy_s=2.0)) is None


def test_the_fewest_items_are_found() -> None:
    """Whatever is not needed goes, the order stays."""
    assert list(_fewest(range(40), lambda some: {3, 17, 31} <= set(some))) == [3, 17, 31]
    assert list(_fewest(range(5), lambda _some: True)) == []


def test_an_explanation_tells_the_way_of_the_message_and_of_the_subscription() -> None:
    """Cause and effect: where it was published, how far it came, what the subscription was told, and what failed meanwhile."""
    with BUG.planted():
        overlay, _ = play(failing_seed(), SMALL, story=True)
    violation = overlay.violations()[0]
    lines = explain(violation, overlay.history, overlay.world.story or ())
    kinds = [line.kind for line in lines]
    assert {"published", "durable", "asked", "began", "so"} <= set(kinds)
    assert lines[-1].text == violation.text
    events = [line.at for line in lines[: kinds.index("so")]]
    assert events == sorted(events)


def test_a_violation_about_nothing_known_is_explained_by_itself() -> None:
    """A machine that crashed names no message."""
    overlay, _ = play(3, Shape(busy_s=2.0), story=True)
    assert explain(Violation("crashed", 1.0, "KeyError: 1 in f"), overlay.history, [])[-1].kind == "crashed"


def test_replay_explains_a_violation() -> None:
    """The command ends with what led to it."""
    with BUG.planted():
        seed = next(seed for seed in range(20) if not run_seed(seed).sound)
        done = CliRunner().invoke(main, ["sim", "replay", "--seed", str(seed)])
    assert done.exit_code == 1
    assert "What led to this" in done.output


def test_replay_takes_what_shrink_prints() -> None:
    """Without faults and clients hardly anything happens."""
    done = CliRunner().invoke(main, ["sim", "replay", "--seed", "3", "--faults", "none", "--clients", "none"])
    assert done.exit_code == 0, done.output
    assert "0 messages, 0 deliveries, 0 faults" in done.output
    assert CliRunner().invoke(main, ["sim", "replay", "--seed", "3", "--faults", "x"]).exit_code == 2
