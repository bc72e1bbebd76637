"""The pairs of filters published with their exact relation: every answer is compared, not only the sound ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroad.core.filters.filter import Filter

VectorsPath = Callable[[str], Path]

DIFFERENCES: dict[str, str] = {}
"""Pairs where we knowingly answer otherwise, with the reason; none at present (see docs/internals/covering.md)."""


@pytest.fixture
def pairs(vectors_path: VectorsPath) -> list[dict[str, Any]]:
    lines = vectors_path("covering_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def witnesses(pair: dict[str, Any]) -> Iterator[tuple[str, bool, bool]]:
    yield from (("witness_a_only", True, False), ("witness_b_only", False, True), ("witness_both", True, True))


def test_witnesses_match_as_published(pairs: list[dict[str, Any]]) -> None:
    """The messages given with the pairs mean the same to us, so the relations are about the same language."""
    for pair in pairs:
        a, b = Filter(pair["a"]), Filter(pair["b"])
        for name, in_a, in_b in witnesses(pair):
            if pair[name] is not None:
                assert (a.matches(pair[name]) is True, b.matches(pair[name]) is True) == (in_a, in_b), (pair["id"], name)


def test_covering_is_sound_on_all_pairs(pairs: list[dict[str, Any]]) -> None:
    """Where a message is known that matches one filter only, the other does not cover it; likewise for disjoint pairs."""
    for pair in pairs:
        a, b = Filter(pair["a"]), Filter(pair["b"])
        assert not (a.covers(b) and pair["witness_b_only"] is not None), pair["id"]
        assert not (b.covers(a) and pair["witness_a_only"] is not None), pair["id"]
        assert not (a.overlaps(b) is False and pair["witness_both"] is not None), pair["id"]


def test_covering_is_complete_on_all_pairs(pairs: list[dict[str, Any]]) -> None:
    """Every published relation is found, but for the differences listed with their reason."""
    assert len(pairs) >= 88
    for pair in pairs:
        a, b = Filter(pair["a"]), Filter(pair["b"])
        found = (a.covers(b), b.covers(a), a.overlaps(b) is False)
        if pair["id"] not in DIFFERENCES:
            assert found == (pair["a_covers_b"], pair["b_covers_a"], pair["disjoint"]), pair["id"]
            assert a.overlaps(b) is not None, pair["id"]
