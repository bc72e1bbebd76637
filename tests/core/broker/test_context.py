"""What every role of a broker is given."""

from __future__ import annotations

from typing import Any, cast

from postroad.core.broker.context import BrokerConfig, Context


def test_questions_of_two_lives_have_different_numbers() -> None:
    """An answer to a question of a former life may come after a restart, with rows of another filter: nobody waits for it."""
    lives = [Context(1, incarnation, BrokerConfig(), [], cast("Any", None)) for incarnation in (2, 3)]
    numbers = [life.next_request() for life in lives for _ in range(3)]
    lives[0].request = 0xFFFF_FFFF
    numbers += [lives[0].next_request()]
    assert len(set(numbers)) == 7
    assert [number >> 32 for number in numbers] == [2, 2, 2, 3, 3, 3, 2]
