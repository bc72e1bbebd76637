"""Admission control under the load of section 5: what `--json` prints, and the shapes of the results that are kept."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from experiments import run as command
from experiments.admission.runs import ESTIMATED, FULL, LESS, MEASURES, MORE, NONE, POLICIES
from experiments.outcome import ROOT, Values

RESULTS = ROOT / "admission" / "results"
SMALL: Values = {
    "seeds": 5,
    "brokers": 6,
    "more_links": 0,
    "publishers": 3,
    "messages": 60,
    "round_messages": 20,
    "stay_s": [2.0, 3.0],
    "again_s": [0.5, 1.5],
    "before_s": 2,
    "subscribers": [1, 4],
    "measured_s": 2,
}


def test_json_is_one_object_with_a_value_per_policy_and_number_of_subscribers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written: that is for figures that somebody wants to keep."""
    kept = {path: path.read_bytes() for path in RESULTS.iterdir()}
    monkeypatch.setattr(command, "read_values", lambda *_, full: (dict(SMALL), int(full)))
    monkeypatch.setattr(sys, "argv", ["run", "admission", "--only", "fig9", "--seed", "3", "--json"])
    assert command.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["seed"], found["seeds"]) == (3, 1)
    for policy in POLICIES:
        assert set(found[policy]) == {"1", "4"}
        assert set(found[policy]["4"]) == set(MEASURES)
    assert kept == {path: path.read_bytes() for path in RESULTS.iterdir()}


def values_of(figure: str, name: str) -> dict[str, list[float]]:
    """Return a measure by policy, as it was kept: a value per number of subscribers."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{figure}.json").read_text(encoding="utf-8"))["rows"]
    return {policy: [row[name] for row in rows if row["policy"] == policy] for policy in POLICIES}


def test_figure_9_has_the_shape_of_the_papers() -> None:
    """Without control discards rise; `full` has next to none, 20% and 40% lie between. Rejections are the other way round."""
    discarded, rejected = values_of("fig9", "discard_per_s"), values_of("fig9", "rejection_rate")
    assert discarded[NONE] == sorted(discarded[NONE])
    assert discarded[NONE][-1] > 1
    assert max(discarded[FULL]) < 0.01 * discarded[NONE][-1]
    assert discarded[FULL][-1] < discarded[LESS][-1] < discarded[MORE][-1] < discarded[NONE][-1]
    assert rejected[FULL][-1] > rejected[LESS][-1] > rejected[MORE][-1] > rejected[NONE][-1] == 0
    assert rejected[FULL][-1] > 0.4


def test_figure_10_has_the_shape_of_the_papers() -> None:
    """The stricter the criterion, the less is used; estimates use more under the same criterion."""
    for name in ("cpu_utilisation", "bandwidth_utilisation"):
        used = {policy: values[-1] for policy, values in values_of("fig10", name).items()}
        assert used[FULL] < used[LESS] < used[MORE] < used[NONE]
        assert used[FULL] < used[ESTIMATED]
