"""The soak finds planted bugs: three here, a sample with `make mutants-sample`, all of them with `make mutants`."""

from __future__ import annotations

import pytest
from tests.mutants.hunting import FIRST_SEED, SAMPLE, SIMULATOR, hunt, new_outcome
from tests.mutants.hunting import SEEDS_MAX as SEEDS_TRIED_MAX
from tests.mutants.planting import AREAS, MUTANTS, Planter
from tests.mutants.results import load_results

from postroad.sim.soak import run_seed

# Three bugs that the checkers of the first simulator did not see in 40 seeds each.
ONCE_UNSEEN = ("forget_acknowledgements", "tell_clients_no_positions", "release_more_than_is_free")
MOST_OF = 11


@pytest.mark.parametrize("name", ONCE_UNSEEN)
def test_most_seeds_find_what_once_went_unnoticed(name: str) -> None:
    """Acknowledgements forgotten, a run that never converges, logs of live subscribers released too early."""
    outcome = hunt(new_outcome(name), list(range(FIRST_SEED, FIRST_SEED + MOST_OF)), findings=MOST_OF // 2 + 1)
    assert outcome.found > MOST_OF / 2, outcome


def test_the_kept_table_tells_of_no_mutant_that_is_not_found() -> None:
    """Whoever changes a mutant hunts it; one that nobody finds shows what is missing."""
    kept = load_results()[SIMULATOR]
    assert kept.keys() <= MUTANTS.keys()
    assert [
        each.name for each in kept.values() if (each.room, each.what) != (MUTANTS[each.name].area, MUTANTS[each.name].what)
    ] == []
    assert [each.name for each in kept.values() if not each.found or each.seeds > SEEDS_TRIED_MAX] == []


def test_there_are_mutants_in_every_area() -> None:
    """At least thirty, and a few of each kind."""
    assert len(MUTANTS) >= 30
    for area in AREAS:
        assert sum(mutant.area == area for mutant in MUTANTS.values()) >= 3, area


def test_the_sample_has_a_mutant_of_every_area() -> None:
    """`make mutants-sample` hunts them, and CI runs that."""
    assert {MUTANTS[name].area for name in SAMPLE} == set(AREAS)


def test_a_seed_that_fails_without_the_mutant_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a bug of the product would pass for eyesight."""
    monkeypatch.setattr("tests.mutants.hunting.fails_anyway", lambda _seed: True)
    assert hunt(new_outcome("release_more_than_is_free"), [FIRST_SEED], findings=1).found == 0


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
