"""Text to trees: precedence, literals, names, and what is refused where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.filters.strategies import conditions

from postroad.core.filters.language import ast
from postroad.core.filters.language.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Sign,
)
from postroad.core.filters.language.parser import parse
from postroad.core.filters.language.text import to_text
from postroad.errors import FilterSyntaxError

A, B, C = Attribute("a"), Attribute("b"), Attribute("c")


def equals(name: Attribute, number: int = 1) -> Comparison:
    return Comparison("=", name, Literal(number))


def same(left: ast.Condition, right: ast.Condition) -> bool:
    """Compare trees with the types of their literals, which `==` does not: 1 == 1.0 == True."""
    return repr(left) == repr(right)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1 OR b = 1 AND c = 1", Or((equals(A), And((equals(B), equals(C)))))),
        ("(a = 1 OR b = 1) AND c = 1", And((Or((equals(A), equals(B))), equals(C)))),
        ("NOT a = 1", Not(equals(A))),
        ("NOT a = 1 AND b = 1", And((Not(equals(A)), equals(B)))),
        ("NOT NOT a", Not(Not(A))),
        ("NOT (a AND b)", Not(And((A, B)))),
        ("a AND (b AND c)", And((A, B, C))),
        ("((a OR b) OR c) OR TRUE", Or((A, B, C, Literal(True)))),
        ("a + b * c > 1", Comparison(">", Arithmetic("+", A, Arithmetic("*", B, C)), Literal(1))),
        ("a - b - c > 1", Comparison(">", Arithmetic("-", Arithmetic("-", A, B), C), Literal(1))),
        ("a / (b / c) > 1", Comparison(">", Arithmetic("/", A, Arithmetic("/", B, C)), Literal(1))),
        ("-a * b < 1", Comparison("<", Arithmetic("*", Sign("-", A), B), Literal(1))),
        ("-(a * b) < 1", Comparison("<", Sign("-", Arithmetic("*", A, B)), Literal(1))),
        ("a - -5 = 1", Comparison("=", Arithmetic("-", A, Literal(-5)), Literal(1))),
        ("a = - -5", Comparison("=", A, Literal(5))),
        ("a BETWEEN 1 AND 2 AND b", And((Between(A, Literal(1), Literal(2)), B))),
        ("a NOT BETWEEN b + 1 AND c", Between(A, Arithmetic("+", B, Literal(1)), C, True)),
        ("a IS NULL OR b IS NOT NULL", Or((IsNull(A), IsNull(B, True)))),
        ("a IN ('x', -1, +2.5, TRUE)", In(A, (Literal("x"), Literal(-1), Literal(2.5), Literal(True)))),
        ("a NOT IN ('x')", In(A, (Literal("x"),), True)),
        ("a LIKE 'x%'", Like(A, "x%")),
        ("a NOT LIKE 'x!_' ESCAPE '!'", Like(A, "x\\_", "\\", True)),
        ("a LIKE 'x%%_%' ESCAPE '!'", Like(A, "x_%")),
        ("+a", Comparison("=", Sign("+", A), Literal(True))),
        ("((a)) = (((1)))", equals(A)),
        ("", Literal(True)),
        (" \t\r\n\f", Literal(True)),
    ],
)
def test_text_becomes_the_tree_of_the_grammar(text: str, tree: ast.Condition) -> None:
    """Operators bind as the specification says, and AND and OR are flat."""
    assert same(parse(text), tree)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0", 0),
        ("57", 57),
        ("57L", 57),
        ("042", 34),
        ("0000", 0),
        ("0x2a", 42),
        ("0X2AL", 42),
        ("0x1d", 29),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775808l", -(2**63)),
        ("-0x8000000000000000", -(2**63)),
        ("7.", 7.0),
        (".5", 0.5),
        ("31E2", 3100.0),
        ("5.E-1", 0.5),
        ("-57.9e+3", -57900.0),
        ("1d", 1.0),
        ("1.5F", 1.5),
        ("042.5", 42.5),
        ("4.9E-324", 5e-324),
        ("1.7976931348623157E308", 1.7976931348623157e308),
        ("'it''s'", "it's"),
        ("''", ""),
        ("'a\x00\n\N{CARROT}'", "a\x00\n\N{CARROT}"),
        ("true", True),
        ("False", False),
    ],
)
def test_literals_have_the_value_java_gives_them(literal: str, value: object) -> None:
    """Octal, hexadecimal, suffixes, exponents and doubled quotes."""
    tree = parse(f"a = {literal}")
    assert isinstance(tree, Comparison)
    assert isinstance(tree.right, Literal)
    assert (type(tree.right.value), tree.right.value) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("$x.y_1 IS NULL", "$x.y_1"),
        ("_ IS NULL", "_"),
        ("\N{GREEK SMALL LETTER ALPHA}2 IS NULL", "\N{GREEK SMALL LETTER ALPHA}2"),
        ('"order-type" IS NULL', "order-type"),
        ('"say ""hi""" IS NULL', 'say "hi"'),
        ('"NOT" IS NULL', "NOT"),
        ('"1" IS NULL', "1"),
        ("\N{LATIN SMALL LETTER DOTLESS I}n IS NULL", "\N{LATIN SMALL LETTER DOTLESS I}n"),
        ("Null_ IS NULL", "Null_"),
    ],
)
def test_names_are_read_as_written(text: str, name: str) -> None:
    """Letters of any script, dots and dollars as they are; anything at all in double quotes."""
    assert parse(text) == IsNull(Attribute(name))


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("3", 0, "number stands where a condition"),
        ("a AND 3 + 5", 6, "number stands where a condition"),
        ("a OR 'x'", 5, "string stands where a condition"),
        ("NOT -a", 4, "number stands where a condition"),
        ("(a = 1) + 2 = 3", 0, "condition stands where a value"),
        ("1 + (a = 1) = 3", 4, "condition stands where a value"),
        ("a = b = c", 0, "condition stands where a value"),
        ("a > 'x'", 4, "only numbers have an order"),
        ("TRUE < a", 0, "only numbers have an order"),
        ("a BETWEEN 1 AND 'x'", 16, "only numbers have an order"),
        ("1 = 'x'", 4, "neither equal nor unequal"),
        ("TRUE <> 0", 8, "neither equal nor unequal"),
        ("order-type = 'limit'", 13, "double quotes"),
        ("a + 'x' = 1", 4, "arithmetic needs numbers"),
        ("-TRUE = 1", 1, "arithmetic needs numbers"),
        ("a = NULL", 4, "IS NULL"),
        ("a IS 5", 5, "IS is followed by NULL"),
        ("a NOT 5", 6, "BETWEEN, LIKE or IN"),
        ("a BETWEEN 1 OR 2", 12, "two bounds"),
        ("a LIKE b", 7, "pattern in single quotes"),
        ("5 LIKE 'a'", 0, "LIKE matches strings"),
        ("a LIKE 'x' ESCAPE 'ab'", 18, "exactly one character"),
        ("a LIKE 'x' ESCAPE ''", 18, "exactly one character"),
        ("a IN ()", 6, "at least one value"),
        ("a IN (b)", 6, "literals only"),
        ("a IN ('x' 'y')", 10, "commas"),
        ("a IN (-'x')", 7, "literals only"),
        ("(a = 1", 0, "never closed"),
        ("a = 1)", 5, "end is expected"),
        ("a = 'x", 4, "no closing quote"),
        ('"a = 1', 0, "no closing quote"),
        ('"" = 1', 0, "cannot be empty"),
        ("a = 1 b = 2", 6, "end is expected (found 'b')"),
        ("f(a) = 1", 0, "no functions"),
        ("a == 1", 3, "one ="),
        ("a != 1", 2, "<>"),
        ("a = 1 && b", 6, "AND"),
        ("in = 1", 0, 'written "in"'),
        ("a = 9223372036854775808", 4, "64 bits"),
        ("a = -9223372036854775809", 5, "64 bits"),
        ("a = -(9223372036854775808)", 6, "64 bits"),
        ("a = " + "9" * 5000, 4, "64 bits"),
        ("a = 0xFFFFFFFFFFFFFFFFF", 4, "64 bits"),
        ("a = 089", 4, "octal"),
        ("a = 1e999", 4, "too large for a double"),
        ("a = 1x", 4, "name cannot start with a digit"),
        ("a = 5AND b", 4, "name cannot start with a digit"),
        ("\N{SUPERSCRIPT TWO} = 1", 0, "starts with a letter"),
        ("a = 1 AND", 9, "found the end"),
        ("a\x00= 1", 1, "unexpected '\\x00'"),
        ("a = '\ud800'", 5, "surrogate"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_wrong(text: str, position: int, reason: str) -> None:
    """Every refusal has a position and a reason that helps."""
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.text == text
    assert str(caught.value)


@given(conditions)
@settings(max_examples=300)
def test_the_text_of_a_tree_parses_to_the_tree(condition: ast.Condition) -> None:
    """Writing and reading are inverse, for every kind of node, down to the types of literals."""
    assert same(parse(to_text(condition)), condition)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.text("aN.$_1\"'", min_size=1))
def test_any_name_can_be_written(name: str) -> None:
    """With quotes where they are needed, every name comes back."""
    assert parse(to_text(IsNull(Attribute(name)))) == IsNull(Attribute(name))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("not(a=1)and((b or(c)))", "NOT a = 1 AND (b OR c)"),
        ("not (a = 1 or b)", "NOT (a = 1 OR b)"),
        ("a-(b-c)=(a*b)/c", "a - (b - c) = a * b / c"),
        ("(a + b) * -(-a) > +3", "(a + b) * - -a > 3"),
        ("a = -(-9223372036854775808)", "a = - -9223372036854775808"),
        ("not (+ a)", "NOT +a"),
        ("a not like 'it''s' escape '!'", "a NOT LIKE 'it''s'"),
        ('"a" = 1 and "a b" is not null and "OR"', 'a = 1 AND "a b" IS NOT NULL AND "OR"'),
        ("x in(1,'a',true)", "x IN (1, 'a', TRUE)"),
        ("x=31E2", "x = 3100.0"),
        ("", "TRUE"),
    ],
)
def test_text_is_written_in_one_way(text: str, written: str) -> None:
    """Canonical keywords and blanks, and only the parentheses that are needed."""
    assert to_text(parse(text)) == written


@given(st.text(max_size=40) | st.text("ab1.'\"()=<>+-*/,% \n_$NOTANDLIKEIS", max_size=60))
@settings(max_examples=500)
def test_any_text_is_parsed_or_refused_with_a_position_inside_it(text: str) -> None:
    """Nothing but a FilterSyntaxError ever leaves the parser."""
    error = refusal(text)
    assert error is None or (0 <= error.position <= len(text) and error.reason and str(error))


def refusal(text: str) -> FilterSyntaxError | None:
    try:
        parse(text)
    except FilterSyntaxError as error:
        return error
    return None
