"""Random runs with every kind of fault, and the commands that run and tell them."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from postroad.cli import main
from postroad.sim.checkers import KINDS, Violation
from postroad.sim.faults import FAULTS, RARE, Faults, Swarm
from postroad.sim.overlay import Overlay
from postroad.sim.soak import Result, Summary, run_seed
from postroad.sim.workload import Shape, Workload

BLOCK = 12
SEEDS_MAX = 40  # in which every kind of fault occurs, and everything else that only some runs have
TRAITS = {
    "bound queues",
    "brokers with the improved rule of congestion",
    "brokers with the paper rule of congestion",
    "brokers with admission control",
    "brokers with 2 pubends",
    "brokers with 4 pubends",
    "brokers of the older release",
    "brokers of the newer release",
    "column batches",
    "crowds",
    "subscriptions in crowds",
    "very slow links",
}
SMALL = (
    "from postroad.sim.soak import run_seed; from postroad.sim.workload import Shape; "
    "print(run_seed(3, Shape(busy_s=6.0)).digest)"
)


@pytest.mark.parametrize("block", range(2))
def test_seeds_hold(block: int) -> None:
    """Whatever fails, nothing is lost, doubled, out of order or stuck: a few seeds here, hundreds with `make seeds`."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        result = run_seed(seed)
        assert result.messages > 0
        assert result.sound, f"{result.violations[0]}\nto repeat: {result.command}"


def test_a_seed_gives_the_same_digest_in_every_process() -> None:
    """Neither memory addresses nor the hash seed of the process leak into a run."""
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_different_seeds_are_different_runs() -> None:
    """The seed decides the run."""
    assert run_seed(1).digest != run_seed(2).digest


def test_a_run_leaves_the_collector_as_it_was() -> None:
    """A run collects garbage rarely; whoever called it does not."""
    before = gc.get_threshold()
    run_seed(1, Shape(busy_s=1.0))
    assert gc.get_threshold() == before


def faults_and_traits(seed: int) -> set[str]:
    """Run a seed as far as faults strike; say which it has, and what else only some runs have."""
    overlay, shape = Overlay(seed), Shape()
    Workload(overlay, shape)
    faults = Faults(overlay, until=shape.busy_s, per_s=shape.faults_per_s, only=shape.faults)
    overlay.run(shape.busy_s)
    overlay.queues.end()
    return {*faults.counts, *overlay.traits}


def test_every_kind_of_fault_occurs_within_the_seeds_of_the_suite() -> None:
    """A fault that never strikes tests nothing."""
    missing = FAULTS.keys() | RARE.keys() | TRAITS
    for seed in range(SEEDS_MAX):
        missing -= faults_and_traits(seed)
        if not missing:
            return
    pytest.fail(f"never seen: {missing}")


def test_each_seed_has_faults_of_its_own() -> None:
    """Kinds and their strength are drawn per seed, so that a bug may need one kind to be frequent or others to be away."""
    swarms = {Swarm.draw(random.Random(seed)) for seed in range(20)}
    assert len(swarms) == 20
    assert all(set(swarm.kinds) <= set(FAULTS) for swarm in swarms)
    assert len({swarm.rate for swarm in swarms}) > 1


def test_soak_prints_a_line_per_seed_and_a_summary() -> None:
    """`postroad sim soak --json` can be read by a program."""
    done = CliRunner().invoke(main, ["sim", "soak", "--seeds", "0:2", "--json", "--workers", "1"])
    assert done.exit_code == 0, done.output
    *seeds, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["seed"] for line in seeds] == [0, 1]
    summary = last["summary"]
    assert {"lost", "duplicated", "misordered", "stuck", "faults", "messages", "digest"} <= summary.keys()
    assert summary["messages"] == sum(line["messages"] for line in seeds)


def test_soak_counts_kinds_and_traits_in_words() -> None:
    """Whoever reads the summary of a green soak sees what it had."""
    done = CliRunner().invoke(main, ["sim", "soak", "--seeds", "0:2", "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "2 of 2 runs converged" in done.stdout
    assert re.search(r"^faults: .*[1-9]\d* \w+", done.stdout, re.MULTILINE)
    assert re.search(r"^also: ", done.stdout, re.MULTILINE)
    assert "0 misreserved" in done.stdout


def test_soak_says_how_to_repeat_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation makes the exit code 1 and names the seed and the command."""
    bad = Result(7, "d", 1, 1, 1, 1.0, (Violation("lost", 1.0, "something"),))
    monkeypatch.setattr("postroad.cli.simulator.soak.run_soak", lambda _seeds, workers: iter([bad][:workers]))
    done = CliRunner().invoke(main, ["sim", "soak", "--seeds", "7:8", "--workers", "1"])
    assert done.exit_code == 1
    assert "postroad sim replay --seed 7" in done.stderr


@pytest.mark.parametrize("text", ["5:5", "a:b", "9:3", ":"])
def test_soak_refuses_what_is_no_range(text: str) -> None:
    """A range of seeds is written A:B."""
    done = CliRunner().invoke(main, ["sim", "soak", "--seeds", text])
    assert done.exit_code == 2
    assert "range of seeds" in done.stderr


def test_replay_tells_the_story() -> None:
    """`postroad sim replay` names the faults and ends with a verdict."""
    done = CliRunner().invoke(main, ["sim", "replay", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "everything heals" in done.stdout
    assert "fault" in done.stdout
    assert "Nothing was lost" in done.stdout


def test_a_summary_counts_every_kind() -> None:
    """No kind of violation is left out of the sum."""
    summary = Summary()
    summary.add(Result(1, "d", 2, 3, 4, 5.0, tuple(Violation(kind, 0.0, "") for kind in KINDS)))
    assert all(summary.line()[kind] == 1 for kind in KINDS)
    assert not summary.sound
