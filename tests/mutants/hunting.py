"""Hunt planted bugs: in how many of the tried seeds the soak finds each, and by which checker.

All mutants meet the same seeds, in blocks that grow: after each block those that were found often enough are done, so a bug
that every other seed shows costs a few seeds, and only one that hides is looked for in all of them. A mutant may name the kinds
of faults that it needs to do harm; then those of the seeds come first that have most of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from tests.mutants import (
    bugs_of_admission,
    bugs_of_brokers,
    bugs_of_clients_and_disks,
    bugs_of_congestion,
    bugs_of_queues,
    bugs_of_sharing,
    bugs_of_traps,
)
from tests.mutants.planting import MUTANTS
from tests.mutants.results import Outcome, load_results, name_code_state, save_results

from postroad.core.broker.congestion.settings import Rule
from postroad.sim.faults import Faults
from postroad.sim.overlay import Overlay
from postroad.sim.soak import run_seed
from postroad.sim.workload import FAR_S, Shape, Workload

SIMULATOR = "overlay"
FINDINGS = 3  # then a mutant is done
FIRST_SEED = 500_000
BLOCKS = (0, 4, 12, 30, 60, 100, 150, 200)  # after so many seeds those that are found are taken out
SEEDS_MAX = BLOCKS[-1]

# Those that few seeds are enough for, one or two of each area: `make mutants-sample`.
SAMPLE = (
    "acknowledge_before_the_disk",
    "announce_all_but_the_last_batch",
    "forward_all_but_the_last_row",
    "match_one_filter_per_child",
    "start_a_second_late",
    "tell_a_gap_for_every_catch_up",
    "never_raise_a_hold",
    "forget_acknowledgements",
    "acknowledge_what_was_received",
    "report_before_the_sync",
    "choose_any_neighbour_as_parent",
    "reserve_for_ever",
    "hold_to_a_rate_for_ever",
    "feed_all_but_the_last_row",
    "forget_what_a_lost_member_held",
)
SAMPLE_SEEDS_MAX = 20
# Importing them registers their mutants.
PLANTED_IN = (
    bugs_of_admission,
    bugs_of_brokers,
    bugs_of_clients_and_disks,
    bugs_of_congestion,
    bugs_of_queues,
    bugs_of_sharing,
    bugs_of_traps,
)


def new_outcome(name: str, code: str = "") -> Outcome:
    return Outcome(name, MUTANTS[name].area, MUTANTS[name].what, code, list(MUTANTS[name].needs))


@cache
def plan_of(seed: int) -> Counter[str]:
    """Count what a seed has in store, without running it: its faults by kind, and its publishers that are far away."""
    overlay, shape = Overlay(seed), Shape()
    Workload(overlay, shape)
    plan = Counter(Faults(overlay, until=shape.busy_s, per_s=shape.faults_per_s).planned)
    far = [name for name, client in overlay.clients.items() if client.profile.latency_s >= min(FAR_S)]
    for trait in ("shared subscriptions", "shared subscriptions with a key"):
        plan[trait] = overlay.traits[trait]
    plan["admission control"] = overlay.traits["brokers with admission control"]
    plan["congestion control"] = sum(
        overlay.traits[f"brokers with the {rule.value} rule of congestion"] for rule in Rule if rule is not Rule.NONE
    )
    plan["bound queues"] = overlay.traits["bound queues"]
    plan["far publishers"] = sum(name.startswith("writer") for name in far)
    return plan


def order_seeds(first: int, count: int, needs: list[str]) -> list[int]:
    """Return the seeds in the order in which they are tried."""

    def promise(seed: int) -> tuple[int, int]:
        plan = plan_of(seed)
        return min(plan[kind] for kind in needs), sum(plan[kind] for kind in needs)

    seeds = range(first, first + count)
    return sorted(seeds, key=promise, reverse=True) if needs else list(seeds)


@cache
def fails_anyway(seed: int) -> bool:
    """Tell whether a seed fails without any planted bug: then it finds none."""
    return not run_seed(seed).sound


def hunt(outcome: Outcome, seeds: list[int], findings: int) -> Outcome:
    """Run seeds with a bug in place until it was found often enough."""
    began = time.process_time()
    for seed in seeds:
        if outcome.found >= findings:
            break
        with MUTANTS[outcome.name].planted():
            result = run_seed(seed)
        broken = next((each for each in result.violations if "bugs_of_" in each.text.partition("\n")[0]), None)
        assert broken is None, f"the mutant {outcome.name} itself fails, adapt it: {broken}"
        found = set() if result.sound or fails_anyway(seed) else {each.checker or each.kind for each in result.violations}
        outcome.add(seed, found)
    outcome.seconds = round(outcome.seconds + time.process_time() - began, 1)
    return outcome


def _hunt(arguments: tuple[Outcome, int, int, int, int]) -> Outcome:
    outcome, first, seeds_max, count, findings = arguments
    return hunt(outcome, order_seeds(first, seeds_max, outcome.needs)[outcome.seeds :][:count], findings)


def hunt_all(names: list[str], *, first: int, seeds_max: int, findings: int, workers: int) -> Iterator[Outcome]:
    """Hunt mutants over common seeds; each is yielded when it is done."""
    code = name_code_state()
    wanted = [new_outcome(name, code) for name in names]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for tried, next_ in pairwise((*(each for each in BLOCKS if each < seeds_max), seeds_max)):
            jobs = [(each, first, seeds_max, next_ - tried, findings) for each in wanted]
            wanted = []
            for outcome in pool.imap_unordered(_hunt, jobs):
                if outcome.found >= findings or outcome.seeds >= seeds_max:
                    yield outcome
                else:
                    wanted.append(outcome)


def main() -> int:
    """Hunt mutants, keep what came of it; 1 when one was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of mutants, separated by commas; a part of a name will do")
    parser.add_argument("--sample", action="store_true", help="only a few of each area, each until one seed has found it")
    parser.add_argument("--missing", action="store_true", help="only those that no kept result says to be found")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="at most so many seeds for each")
    parser.add_argument("--findings", type=int, default=FINDINGS, help="stop a mutant after so many seeds found it")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="write results.json, from which `make docs` writes the table")
    options = parser.parse_args()
    wanted = [part for part in options.only.split(",") if part]
    names = [name for name in MUTANTS if not wanted or any(part in name for part in wanted)]
    if options.missing:
        kept = load_results().get(SIMULATOR, {})
        names = [name for name in names if name not in kept or not kept[name].found]
    if options.sample:
        names, options.seeds, options.findings = list(SAMPLE), SAMPLE_SEEDS_MAX, 1
    outcomes: dict[str, Outcome] = {}
    how = {"first": options.first, "seeds_max": options.seeds, "findings": options.findings, "workers": options.workers}
    for each in hunt_all(names, **how):
        outcomes[each.name] = each
        verdict = f"found in {each.found} of {each.seeds} seeds" if each.found else f"NOT FOUND in {each.seeds} seeds"
        print(f"{each.room}: {each.name}: {verdict}, {each.seconds:.0f} s, {each.checkers}", flush=True)
        if options.keep:
            save_results(SIMULATOR, outcomes, set(MUTANTS))
    missed = [each.name for each in outcomes.values() if not each.found]
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} found; {sum(e.seconds for e in outcomes.values()):.0f} CPU seconds")
    if missed:
        print("not found: " + ", ".join(missed), file=sys.stderr)
    return 1 if missed else 0
