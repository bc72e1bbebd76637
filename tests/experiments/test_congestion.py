"""The experiments of congestion control: what each reports, and that nothing is lost in them."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
from experiments.congestion.measures import jain, settled_after
from experiments.congestion.runs import thinned
from experiments.congestion.seeds import table
from experiments.outcome import Values

ALWAYS = {"seed", "virtual_s", "lost", "duplicated", "misordered"}
RATES = {"sb1_rate_end", "sb2_rate_end"}
SHORT: dict[str, tuple[Values, set[str], set[str]]] = {  # values, rules, what is reported for each
    "collapse1": ({"free_s": 2, "limited_s": 3, "subscriptions": 1}, {"none", "paper", "improved"}, RATES),
    "collapse2": ({"before_s": 2, "outage_s": 2, "after_s": 3, "subscriptions": 2}, {"none", "paper", "improved"}, RATES),
    "e1": (
        {"before_s": 2, "outage_s": 2, "after_s": 5, "window_after_s": 2},
        {"none", "paper", "improved"},
        {"recovered", "recovery_s", "ideal_recovery_s", "rate_before", "rate_after", "nack_window_ms_peak"},
    ),
    "e2": (
        {"free_s": 2, "phase_s": 4},
        {"none", "paper", "improved"},
        {"utilisation", "ib_backlog_bytes_max", "settle_s"},
    ),
    "e3": (
        {"free_s": 1, "limited_s": 2, "outage_s": 2, "after_s": 4},
        {"none", "paper", "improved"},
        {"all_recovered", "recovery_s"},
    ),
    "e4": (
        {"before_s": 2, "outage_s": 2, "after_s_max": 10, "deltas": [0.0, 2.0]},
        {"paper", "improved"},
        {"recovery_s", "jain"},
    ),
}


@pytest.mark.parametrize("name", list(SHORT))
def test_an_experiment_reports_everything_and_loses_nothing(name: str) -> None:
    """The object that `--json` prints, and a figure of the rows."""
    experiment: Any = importlib.import_module(f"experiments.congestion.{name}")
    values, rules, reported = SHORT[name]
    outcome = experiment.run(values, 5)
    summary = json.loads(json.dumps(outcome.summary))
    assert summary.keys() == ALWAYS | rules
    assert (summary["seed"], summary["lost"], summary["duplicated"], summary["misordered"]) == (5, 0, 0, 0)
    assert all(summary[rule].keys() == reported for rule in rules)
    experiment.draw(outcome)
    if name == "e4":
        assert summary["paper"]["jain"].keys() == summary["paper"]["recovery_s"].keys() == {"0.0", "2.0"}


def test_rows_of_a_figure_are_means_and_longest_backlogs() -> None:
    """Five samples become one."""
    rows = [{"t": float(n), "published": float(n), "backlog A-B": n % 4} for n in range(10)]
    assert thinned(rows) == [{"t": 4.0, "published": 2.0, "backlog A-B": 3}, {"t": 9.0, "published": 7.0, "backlog A-B": 3}]


def test_a_table_of_seeds_has_the_least_the_mean_and_the_most() -> None:
    """Rows of experiments that were not run are left out."""
    lines = [
        {"seed": seed, "rule": "improved", "experiment": "e1", "recovered": True, "recovery_s": seconds, "ideal_recovery_s": 100}
        for seed, seconds in ((1, 110), (2, 120))
    ]
    assert (
        table(lines).splitlines()[-1] == "| E1, improved | 2 | recovery over the ideal | 1.100 | 1.150 | 1.200 | at most 1.25 |"
    )


def test_jains_index_is_one_for_equals_and_a_quarter_when_one_of_four_has_all() -> None:
    """It is 1 as well when nobody has anything."""
    assert jain(np.array([3.0] * 4)) == 1
    assert jain(np.array([8.0, 0, 0, 0])) == 0.25
    assert jain(np.zeros(4)) == 1


def test_a_rate_has_settled_when_it_stays_near_its_end() -> None:
    """It falls for twenty seconds, then stays; one that goes on swinging never settles."""
    at = np.arange(1.0, 121.0)
    rates = np.where(at < 21, 500 - 20 * at, 100.0)
    assert 10 < (settled_after(at, rates, 0, 120) or 0) < 25
    assert settled_after(at, np.where(at // 20 % 2, 200.0, 20.0), 0, 120) is None
