"""The experiments run, give the same results twice, and the page of results says what the results say."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from experiments.outcome import ROOT, read_values
from experiments.readme import readme
from experiments.run import EXPERIMENTS
from experiments.tracking import fig1, theorem1
from experiments.tracking.configurations import ALL, PAPER
from experiments.tracking.load import Load

from postroad.tracking.histories.events import Delivered, Published


def test_the_page_of_results_is_written_from_the_results() -> None:
    """`experiments/README.md` is not edited by hand, and not older than the results beside it."""
    assert (ROOT / "README.md").read_text(encoding="utf-8") == readme(EXPERIMENTS)


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig5"])
def test_a_figure_that_does_not_match_the_paper_says_where(name: str) -> None:
    """What differs stands with the figure's values, and so survives another run."""
    page = readme({"tracking": (name,)})
    assert "Where it does not match the paper:\n\n- " in page


@pytest.mark.parametrize(("paper", "name"), [(paper, name) for paper, names in EXPERIMENTS.items() for name in names])
def test_every_experiment_has_its_values_and_its_results(paper: str, name: str) -> None:
    """A module, a file of values with a short and a full run, and what the last run left."""
    module: Any = importlib.import_module(f"experiments.{paper}.{name}")
    for full in (False, True):
        values, seed = read_values(paper, name, full=full)
        assert values
        assert seed
    document = json.loads((ROOT / paper / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert document["title"] == module.TITLE
    assert document["rows"]
    assert document["findings"]
    for suffix in ("csv", "svg"):
        assert (ROOT / paper / "results" / f"{name}.{suffix}").stat().st_size


def test_figure_1_gives_the_same_rows_twice() -> None:
    """Same seed, same values; and the measured rates are those of equation (1), within their error."""
    first = fig1.run({"probes": 20_000}, 3)
    assert first == fig1.run({"probes": 20_000}, 3)
    assert min(row["measured"] / row["equation_1"] for row in first.rows if row["measured"] is not None) > 0.5
    fig1.draw(first)


def test_theorem_1_holds_in_a_short_run() -> None:
    """No matching set beyond the bound, and beyond two where the inequality for two is broken."""
    outcome = theorem1.run({"seconds": 5, "skews_ms": [0, 240, 700], "jitters_ms": [0, 300]}, 1)
    assert all(row["largest"] <= row["bound"] for row in outcome.rows)
    assert max(row["largest"] for row in outcome.rows) > 2
    assert all(row["singletons"] == 0 for row in outcome.rows)
    theorem1.draw(outcome)


def test_the_load_is_that_of_section_5_2() -> None:
    """5,000 messages per second in and about as many out; each publisher sends 25, each subscriber gets about ten."""
    load = Load(4)
    turns = list(load.events())
    published = sum(len(event.ids) for _, events in turns for event in events if isinstance(event, Published))
    delivered: dict[str, int] = {}
    for _, events in turns:
        for event in events:
            if isinstance(event, Delivered):
                delivered[event.subscriber] = delivered.get(event.subscriber, 0) + len(event.ids)
    assert published == 4 * 5_000
    assert len(delivered) == 500
    assert abs(sum(delivered.values()) - 4 * 5_000) < 1_500
    assert 10 < min(delivered.values()) <= max(delivered.values()) < 80
    ids = [bytes(one) for turn in load.turns() for one in turn.ids.tolist()]
    assert len(set(ids)) == len(ids)


def test_all_rows_of_table_2_are_there() -> None:
    """The paper's 21 configurations, and ours behind them."""
    assert len(PAPER) == 21
    assert len({configuration.name for configuration in ALL}) == len(ALL) == 25
