"""Bugs planted in the topics service, and the simulator that must find them."""

from __future__ import annotations

import pytest
from tests.topics.mutants import MUTANTS, SAMPLE, hunt, planted

from postroad.topics.machines import replica


@pytest.mark.parametrize("name", SAMPLE)
def test_the_simulator_finds_a_planted_bug(name: str) -> None:
    """A checker that cannot fail proves nothing: each of these is found within a few dozen seeds."""
    assert hunt(name, range(60)).found, f"no seed below 60 shows {name}; see them all with: python -m tests.topics.mutants"


def test_a_planted_bug_is_gone_afterwards() -> None:
    """The product is as it was."""
    before = replica.TopicCopy.put
    with planted("put_forgets_the_counter"):
        assert replica.TopicCopy.put is not before
    assert replica.TopicCopy.put is before


def test_every_planted_bug_says_what_it_breaks() -> None:
    """The table prints the docstrings."""
    assert len(MUTANTS) >= 10
    assert all(install.__doc__ for install in MUTANTS.values())
