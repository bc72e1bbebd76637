"""What the benchmarks claim to measure is what they measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import overlay
from benchmarks.records import circumstances, save

from postroad.core.batch.batch import Batch
from postroad.core.filters.index.filter_index import FilterIndex


def test_matching_is_measured_with_matches_that_grow_with_the_subscriptions() -> None:
    """The symbols stay the same, and the rows of every match are made."""
    few, many = overlay.shape_d(0.0, (20, 2_000))
    assert many["matches"] > 50 * few["matches"] > 0
    assert len(many["samples"]) >= 3


def test_a_lazy_result_is_not_taken_for_a_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measured round asks for the rows of the matches."""
    made: list[int] = []
    materialise = overlay._materialise

    def counted(index: FilterIndex[int], batch: Batch) -> int:
        made.append(materialise(index, batch))
        return made[-1]

    monkeypatch.setattr(overlay, "_materialise", counted)
    (row,) = overlay.shape_d(0.0, (500,))
    assert made == [row["matches"]] * (1 + len(row["samples"]))


def test_raw_results_say_when_where_and_with_which_code_they_were_measured(tmp_path: Path) -> None:
    """Without these a figure cannot be read."""
    save(tmp_path / "new" / "x.json", circumstances(), [{"rate": 1}])
    kept = json.loads((tmp_path / "new" / "x.json").read_text())
    assert kept["results"] == [{"rate": 1}]
    assert {"measured_at", "code", "load_before", "cores", "system"} <= set(kept["machine"])
