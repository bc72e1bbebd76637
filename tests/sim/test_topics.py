"""The soak in the suite: a few dozen seeds; `postroad sim topics --seeds A:B` runs as many as you like."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from postroad.cli import main
from postroad.sim.topics.checker import Books, Verdicts, check
from postroad.sim.topics.simulation import simulate

REPEAT = "repeat with: postroad sim topics --json --seeds"


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_nothing_is_lost_doubled_misordered_stuck_or_leaked(first: int) -> None:
    """Must show 1, in short: crashes, cuts, losses, two owners."""
    for seed in range(first, first + 10):
        outcome = simulate(seed)
        assert outcome.verdicts.total == 0, f"{outcome.verdicts.examples}; {REPEAT} {seed}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_thousand_seeds() -> None:
    """Must show 1, in full length."""
    for seed in range(2000):
        outcome = simulate(seed)
        assert outcome.verdicts.total == 0, f"{outcome.verdicts.examples}; {REPEAT} {seed}"


@pytest.mark.parametrize("seed", [0, 11, 31])
def test_a_seed_gives_one_trace(seed: int) -> None:
    """The digest covers every message delivered and every crash."""
    assert simulate(seed).digest == simulate(seed).digest
    assert simulate(seed).digest != simulate(seed + 1).digest


def loses(seeds: range, **switches: bool) -> bool:
    return any(simulate(seed, **switches).verdicts.lost for seed in seeds)


def test_without_the_clock_stamps_the_checker_catches_the_seeds_loss() -> None:
    """Must show 1: section 4 of the seed admits the loss; without stamps it is found."""
    assert loses(range(30), stamps=False)


def test_without_homes_messages_are_lost() -> None:
    """The rule that a client stays with its copy is needed."""
    assert loses(range(100, 150), homes=False)


def test_without_settling_messages_are_lost() -> None:
    """The rule that nothing is reclaimed before it is settled is needed."""
    assert loses(range(90, 130), settle=False)


def books() -> Books:
    made = Books()
    made.subscription("alice", "t", joining=True, now=1.0).done = 2.0
    for number, at in ((1, 3.0), (2, 4.0)):
        made.new_put("bob", "t", number, at).done = at + 0.1
    return made


@pytest.mark.parametrize(
    ("received", "fault"),
    [
        ([b"bob t 1", b"bob t 2"], None),
        ([b"bob t 1"], "lost"),
        ([b"bob t 1", b"bob t 2", b"bob t 2"], "duplicated"),
        ([b"bob t 2", b"bob t 1"], "misordered"),
        ([b"bob t 1", b"bob t 2", b"nobody"], "unexpected"),
    ],
)
def test_the_checkers_see_each_kind_of_fault(received: list[bytes], fault: str | None) -> None:
    """A checker that cannot fail proves nothing."""
    made, verdicts = books(), Verdicts()
    for place, body in enumerate(received):
        made.receive("alice", "t", body, 5.0 + place)
    check(made, verdicts, skew_s=0.0)
    assert verdicts.total == (0 if fault is None else 1)
    assert fault is None or getattr(verdicts, fault) == 1


def test_the_checkers_see_a_message_after_an_unsubscribe_and_one_from_before_the_subscription() -> None:
    """Sections 2.1 and 2.2."""
    made, verdicts = books(), Verdicts()
    made.new_put("bob", "t", 0, 0.1).done = 0.2
    made.receive("alice", "t", b"bob t 0", 4.5)
    made.subscription("alice", "t", joining=False, now=4.6).done = 4.7
    made.receive("alice", "t", b"bob t 1", 5.0)
    check(made, verdicts, skew_s=0.0)
    assert verdicts.unexpected == 2


def test_the_command_prints_a_line_per_seed_and_a_summary() -> None:
    """The shape scripts rely on."""
    result = CliRunner().invoke(main, ["sim", "topics", "--seeds", "5:7", "--json", "--jobs", "1"])
    assert result.exit_code == 0
    *seeds, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["seed"] for line in seeds] == [5, 6]
    assert {"lost", "duplicated", "misordered", "stuck", "faults", "messages", "digest"} <= summary.keys()
    assert summary["messages"] == sum(line["messages"] for line in seeds)


def test_the_command_fails_when_something_is_lost() -> None:
    """Exit code 1, and the command that repeats it."""
    result = CliRunner().invoke(main, ["sim", "topics", "--seeds", "0:30", "--without-stamps", "--jobs", "2"])
    assert result.exit_code == 1
    assert "repeat the first with: postroad sim topics --seeds" in result.stderr


@pytest.mark.parametrize("seeds", ["x", "5:3", "1:y", ""])
def test_a_wrong_range_of_seeds_is_explained(seeds: str) -> None:
    """A usage error, not a traceback."""
    result = CliRunner().invoke(main, ["sim", "topics", "--seeds", seeds])
    assert result.exit_code == 2
    assert "range of seeds" in result.stderr
