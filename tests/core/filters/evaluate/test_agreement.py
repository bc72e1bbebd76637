"""Three evaluators of one language: the plain reference, the scalar one and the columnar one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from tests.core.filters.evaluate import reference
from tests.core.filters.strategies import batch_of, batches, conditions, leaves, rows

from postroad import Filter
from postroad.core.batch.batch import Batch
from postroad.core.filters.evaluate import one_message as scalar
from postroad.core.filters.evaluate import whole_batch as columns
from postroad.core.filters.language import ast

Messages = list[dict[str, Any]]


@given(conditions, rows)
@settings(max_examples=250)
def test_the_scalar_evaluator_agrees_with_the_reference(condition: ast.Condition, message: dict[str, Any]) -> None:
    """True, false and unknown come out alike."""
    assert scalar.matches(condition, message) is reference.truth(condition, message)


@given(conditions, batches())
@settings(max_examples=400)
def test_the_columnar_evaluator_selects_the_rows_that_are_true(condition: ast.Condition, data: tuple[Messages, Batch]) -> None:
    """A mask has exactly the rows for which the reference says true."""
    messages, batch = data
    assert list(columns.evaluate(condition, batch)) == [reference.truth(condition, message) is True for message in messages]


@given(leaves, batches())
@settings(max_examples=400)
@example(
    ast.Comparison("<=", ast.Attribute("i"), ast.Attribute("x")),
    (
        [{"i": 2**63 - 1, "x": 2.0**63}, {"i": 2**53 + 1, "x": 2.0**53}],
        batch_of([{"i": 2**63 - 1, "x": 2.0**63}, {"i": 2**53 + 1, "x": 2.0**53}]),
    ),
)
def test_a_condition_and_its_negation_split_the_rows_that_are_known(
    condition: ast.Condition, data: tuple[Messages, Batch]
) -> None:
    """Definitely true and definitely false never meet, and what is in neither is unknown to the reference."""
    messages, batch = data
    yes, no = columns.evaluate(condition, batch), columns.evaluate(ast.Not(condition), batch)
    assert not np.any(yes & no)
    assert [True if y else False if n else None for y, n in zip(yes, no, strict=True)] == [
        reference.truth(condition, message) for message in messages
    ]


@given(conditions, batches())
def test_a_filter_evaluates_a_batch_as_it_matches_each_message(condition: ast.Condition, data: tuple[Messages, Batch]) -> None:
    """The public class, from text, says the same of a batch and of its messages one by one."""
    messages, batch = data
    subject = Filter.from_condition(condition)
    assert list(subject.evaluate(batch)) == [subject.matches(message) is True for message in messages]
    assert subject.matches(messages[0]) is reference.truth(condition, messages[0])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@given(conditions, batches())
@settings(max_examples=10_000)
def test_all_three_agree_for_a_long_time(condition: ast.Condition, data: tuple[Messages, Batch]) -> None:
    """The same over many more filters, for `make soak`."""
    messages, batch = data
    expected = [reference.truth(condition, message) for message in messages]
    assert [scalar.matches(condition, message) for message in messages] == expected
    assert list(columns.evaluate(condition, batch)) == [truth is True for truth in expected]
