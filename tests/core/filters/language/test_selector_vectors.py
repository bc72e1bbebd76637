"""Selectors from the test suites of other brokers: what all agree on, and our documented answer where they differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.filters.strategies import one_row

from postroad import Filter, FilterSyntaxError

Case = dict[str, Any]
Vectors = Callable[[str], Path]

TRUTHS = {True: "true", False: "false", None: "unknown"}


def cases(path: Path, **wanted: str) -> list[Case]:
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [case for case in lines if all(case[key] == value for key, value in wanted.items())]


def attribute(typed: dict[str, Any]) -> Any:
    match typed["t"]:
        case "null":
            return None
        case "float" | "double":
            return float(typed["v"])
        case "binary":
            return bytes.fromhex(typed["v"])
        case _:
            return typed["v"]


def message(case: Case) -> dict[str, Any]:
    """Headers are attributes; a null property is an absent one."""
    values = {name: attribute(typed) for name, typed in case["props"].items()} | case["headers"]
    return {name: value for name, value in values.items() if value is not None}


def refused(text: str) -> bool:
    try:
        Filter(text)
    except FilterSyntaxError:
        return True
    return False


def test_every_case_the_suites_agree_on_comes_out_as_they_say(vectors_path: Vectors) -> None:
    """996 selectors with a message: match or not, and the exact truth value where the suite knows it."""
    agreed = cases(vectors_path("jms_selector_cases.jsonl"), tier="core")
    assert len(agreed) == 996
    wrong = []
    for case in agreed:
        subject, attributes = Filter(case["expr"]), message(case)
        answer = subject.matches(attributes)
        by_column = bool(subject.evaluate(one_row(attributes))[0])
        if (
            (answer is True) != (case["expect"] == "match")
            or case["truth"] not in {None, TRUTHS[answer]}
            or by_column != (answer is True)
        ):
            wrong.append((case["id"], case["expr"], answer))
    assert not wrong


def test_every_selector_the_suites_reject_is_refused(vectors_path: Vectors) -> None:
    """54 selectors are syntax errors or static type errors everywhere."""
    bad = cases(vectors_path("selector_invalid.jsonl"), tier="must_reject")
    assert len(bad) == 54
    assert [case["expr"] for case in bad if not refused(case["expr"])] == []


@pytest.mark.parametrize("dialect", ["jms", "quoted-identifier-ext"])
def test_every_selector_of_the_language_parses(vectors_path: Vectors, dialect: str) -> None:
    """Whatever a selector implementation must accept, we accept; and so is the text we write for it."""
    good = cases(vectors_path("selector_must_parse.jsonl"), dialect=dialect)
    assert good
    for case in good:
        subject = Filter(case["expr"])
        assert Filter(str(subject)).condition == subject.condition


# Where implementations differ. The groups are those of docs/reference/filters.md.

ORDER_OF_STRINGS = {f"jms-{number}" for number in (*range(1040, 1051), 1057, 1058)}
STATIC_TYPE_ERRORS = {"jms-1052", "jms-1065", "jms-1066", "jms-1068"}


def test_contested_cases_follow_the_specification_or_are_refused(vectors_path: Vectors) -> None:
    """We refuse what can never match by its literals; for all others our answer is the specification's."""
    contested = cases(vectors_path("jms_selector_cases.jsonl"), tier="contested")
    assert len(contested) == 75
    wrong: list[tuple[str, str, object]] = []
    for case in contested:
        if case["id"] in ORDER_OF_STRINGS | STATIC_TYPE_ERRORS:
            if not refused(case["expr"]):
                wrong.append((case["id"], case["expr"], "accepted"))
            continue
        answer = Filter(case["expr"]).matches(message(case))
        if (answer is True) != (case["expect"] == "match"):
            wrong.append((case["id"], case["expr"], answer))
    assert not wrong


@pytest.mark.parametrize(
    ("case_id", "answer"),
    [
        ("jms-0997", True),  # empty: matches everything
        ("jms-1051", None),  # +city: a sign on a string is NULL, not concatenation
        ("jms-1053", None),  # bytes LIKE: unknown
        ("jms-1054", None),
        ("jms-1055", True),  # any one character may be the escape
        ("jms-1056", False),
        ("jms-1059", None),  # NULL = NULL
        ("jms-1060", None),
        ("jms-1067", None),  # division by zero
        ("jms-1069", None),  # boolean + boolean
    ],
)
def test_contested_cases_have_the_documented_truth(vectors_path: Vectors, case_id: str, answer: bool | None) -> None:
    """Where `no match` could be false or unknown, it is the one the reference page says."""
    (case,) = cases(vectors_path("jms_selector_cases.jsonl"), id=case_id)
    assert Filter(case["expr"]).matches(message(case)) is answer


REFUSED_CHOICES = {"+TRUE"}
REFUSED_DIALECT = {" 9223372036854775808>0", "-9223372036854775809<0", "null", "a > 100000000000000000000000"}
ACCEPTED_BEYOND_ACTIVEMQ = {
    "my.key", "delivery_annotations.abc", "d.abc", "message_annotations.abc", "m.abc", "footer.abc", "f.abc", "header.invalid",
    "properties.invalid",
}  # fmt: skip


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("strict_jms_reject", lambda text: "IN (1,2,3)" not in text),  # numbers in IN are our extension
        ("choice", REFUSED_CHOICES.__contains__),
        ("dialect-only", REFUSED_DIALECT.__contains__),
        ("also_rejected_by_activemq", lambda text: text not in ACCEPTED_BEYOND_ACTIVEMQ),  # dots are part of names
    ],
)
def test_selectors_that_only_some_reject_get_the_documented_answer(
    vectors_path: Vectors, tier: str, expected: Callable[[str], bool]
) -> None:
    """Each selector that is invalid in some dialect is refused or accepted as the reference page says."""
    some = cases(vectors_path("selector_invalid.jsonl"), tier=tier)
    assert some
    assert {case["expr"]: refused(case["expr"]) for case in some} == {case["expr"]: expected(case["expr"]) for case in some}


QPID_ONLY = {
    "A LIKE 'excep%ional' EScape ''",
    "A BETWEEN 13 AND 'true'",
    "-354",
    "-(X or Y)",
    "-687 or 567",
    "(354.6)",
    "A is null and 'hello out there'",
    "A IN ('hello', 'there', 1 , true, (1-17))",
}


def test_selectors_of_the_qpid_dialect_parse_but_for_the_documented_ones(vectors_path: Vectors) -> None:
    """Qpid takes numbers and strings for conditions and expressions in IN lists; we do not."""
    dialect = cases(vectors_path("selector_must_parse.jsonl"), dialect="qpid-cpp")
    assert {case["expr"] for case in dialect if refused(case["expr"])} == QPID_ONLY
