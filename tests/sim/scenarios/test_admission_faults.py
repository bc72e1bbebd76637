"""Faults between a reservation and its decision: nothing leaks, nothing is half admitted, and every delivery stays right."""

from __future__ import annotations

from collections import Counter

import pytest

from postroad.sim.admission_faults import STRIKES
from postroad.sim.soak import run_seed

SEEDS = (27, 64)  # in which each of the faults strikes


@pytest.fixture(scope="module")
def struck() -> Counter[str]:
    """Run the seeds, which must hold; return how often each fault struck."""
    struck: Counter[str] = Counter()
    for seed in SEEDS:
        result = run_seed(seed)
        assert result.sound, f"{result.violations[0]}\nto repeat: {result.command}"
        struck.update(dict(result.traits))
    return struck


@pytest.mark.parametrize("fault", STRIKES)
def test_each_fault_strikes_and_does_no_harm(struck: Counter[str], fault: str) -> None:
    assert struck[f"admission: {fault}"]


def test_a_competing_request_is_made(struck: Counter[str]) -> None:
    """Another client asks for the same filter while the brokers decide."""
    assert struck["admission: rivals"]
