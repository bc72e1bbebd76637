"""The soak finds planted bugs: a sample here, all of them with `make mutants`."""

from __future__ import annotations

import pytest
from tests.mutants.hunting import FIRST_SEED, hunt
from tests.mutants.planting import AREAS, MUTANTS, Planter

from postroad.sim.soak import run_seed

# Those that few seeds are enough for, one or two of each area.
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
    "compare_sequences_only",
)
SEEDS_MAX = 20


@pytest.mark.parametrize("name", SAMPLE)
def test_the_soak_finds_a_planted_bug(name: str) -> None:
    """Within a few seeds some checker complains."""
    assert hunt(name, FIRST_SEED, SEEDS_MAX, findings=1).found, f"to see all: python -m tests.mutants --only {name}"


def test_there_are_mutants_in_every_area() -> None:
    """At least thirty, and a few of each kind."""
    assert len(MUTANTS) >= 30
    for area in AREAS:
        assert sum(mutant.area == area for mutant in MUTANTS.values()) >= 3, area


def test_every_mutant_can_be_planted_and_taken_out() -> None:
    """What a mutant replaces exists, and stands there again afterwards: the product does not change."""
    before = run_seed(FIRST_SEED).digest
    for mutant in MUTANTS.values():
        with mutant.planted():
            pass
    assert run_seed(FIRST_SEED).digest == before


def test_a_mutant_without_its_target_fails() -> None:
    """It must not become a bug that is never planted."""
    with pytest.raises(KeyError):
        Planter().wrap(Planter, "no_such_method", lambda before: before)
