"""`covers` and `overlaps`: the rules, the traps of three-valued logic and NaN, and the bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.core.filters.language.trees import (
    between,
    both,
    compare,
    either,
    eq,
    ge,
    gt,
    le,
    like,
    lt,
    missing,
    ne,
    negation,
    one_of,
    present,
)
from tests.counting import count_calls

from postroad.core.filters.algebra.covering import covers, overlaps
from postroad.core.filters.algebra.normal_form import BOXES_MAX, Normal, condition_text, prepare
from postroad.core.filters.filter import Filter
from postroad.core.filters.language.ast import And, Arithmetic, Attribute, Condition, Literal, Not, Or, Sign
from postroad.core.filters.language.limits import DEPTH_CEILING, FilterLimits

TRUE, FALSE = Literal(True), Literal(False)
A, B = Attribute("a"), Attribute("b")
SUM = Arithmetic("+", A, B)

YES: list[tuple[Condition, Condition]] = [
    (gt("x", 3), gt("x", 5)),
    (gt("x", 3), both(gt("x", 5), eq("s", "ibm"))),
    (ge("x", 5), gt("x", 5)),
    (ge("x", 5), eq("x", 5.0)),
    (between("x", 1, 9), between("x", 2, 3)),
    (between("x", 1, 9), one_of("x", 1, 5, 9)),
    (ne("x", 5), gt("x", 5)),
    (ne("x", 5), one_of("x", 1, 2)),
    (negation(gt("x", 5)), le("x", 5)),
    (negation(lt("x", 5)), negation(lt("x", 6))),
    (present("x"), ne("x", "a")),
    (present("x"), Attribute("x")),
    (present("x"), negation(eq("x", 5))),
    (eq("x", True), Attribute("x")),
    (negation(Attribute("x")), eq("x", False)),
    (one_of("x", True, False), Attribute("x")),
    (like("s", "ab%"), eq("s", "abc")),
    (like("s", "ab%"), like("s", "abc%")),
    (like("s", "ab%"), one_of("s", "ab", "abz")),
    (like("s", "%"), ne("s", "a")),
    (like("s", "a%", negated=True), eq("s", "b")),
    (like("s", "%b%"), like("s", "abc%")),
    (like("s", "a_c"), eq("s", "abc")),
    (one_of("s", "a", "b"), eq("s", "a")),
    (one_of("s", "a", negated=True), one_of("s", "a", "b", negated=True)),
    (either(lt("x", 5), ge("x", 5)), between("x", 1, 9)),
    (either(lt("x", 5), gt("x", 3)), le("x", 9)),
    (either(gt("x", 1), gt("y", 1)), gt("y", 2)),
    (gt("x", 1), either(gt("x", 2), both(gt("x", 3), gt("y", 3)))),
    (either(both(lt("x", 5), gt("y", 1)), both(ge("x", 5), gt("y", 0))), both(between("x", 0, 9), gt("y", 1))),
    (gt(SUM, 3), gt(SUM, 5)),
    (gt(SUM, 3), both(gt(Arithmetic("+", B, A), 4), eq("s", "x"))),
    (gt(Attribute("a"), Attribute("b")), lt(Attribute("b"), Attribute("a"))),
    (compare(A, "<>", B), compare(A, "<", B)),
    (negation(compare(A, ">", B)), compare(A, "<=", B)),
    (present("a"), compare(A, "=", B)),
    (present("a"), gt(SUM, 0)),
    (TRUE, eq("x", 1)),
    (eq("x", 1), FALSE),
    (eq("x", 1), both(gt("x", 3), lt("x", 3))),
    (eq("x", 1), both(eq("s", "a"), eq("s", 5))),
    (eq("x", 1), lt("s", "a")),
    (either(missing("x"), present("x")), gt("y", 1)),
    (negation(both(gt("x", 5), lt("y", 3))), ge("y", 3)),
    (between("x", 1, Attribute("b")), both(ge("x", 2), compare("x", "<=", Attribute("b")))),
    (gt("x", 2**53), gt("x", 2**53 + 1)),
    (gt("x", Sign("-", Literal(3))), gt("x", -3)),
]

NO: list[tuple[Condition, Condition]] = [
    (gt("x", 5), gt("x", 3)),
    (gt("x", 5), ge("x", 5)),
    (both(gt("x", 5), eq("s", "ibm")), gt("x", 5)),
    (le("x", 5), negation(gt("x", 5))),  # NaN: NOT (NaN > 5) is true, NaN <= 5 is false
    (either(lt("x", 5), ge("x", 5)), ne("x", 5)),  # NaN again
    (ne("x", 5), present("x")),  # a string is neither 5 nor not 5
    (ne("x", 5), eq("x", "a")),
    (ne("x", "a"), missing("x")),
    (eq("x", 1), Attribute("x")),  # true is no number
    (eq("x", True), eq("x", 1)),
    (either(Attribute("x"), negation(Attribute("x"))), present("x")),
    (either(gt("x", 5), negation(gt("x", 5))), TRUE),  # unknown for NULL and strings
    (negation(one_of("x", 1, "a")), eq("x", 2)),  # 2 = 'a' is unknown
    (like("s", "a%"), like("s", "%a")),
    (like("s", "a%"), present("s")),
    (like("s", "a!%", "!"), like("s", "a%")),
    (gt("x", 2**53), ge("x", 2**53 + 0.0)),
    (eq("x", 2**53), eq("x", 2**53 + 1)),
    (gt(SUM, 3), gt(Arithmetic("-", A, B), 3)),
    (gt(Arithmetic("-", A, B), 3), gt(Arithmetic("-", B, A), 3)),
    (gt(Arithmetic("/", A, B), 3), gt(Arithmetic("/", B, A), 3)),
    (gt(Arithmetic("/", A, Literal(2)), 1), gt(Arithmetic("/", A, Literal(2.0)), 1)),
    (compare(A, "<=", B), negation(compare(A, ">", B))),
    (either(le("a", 5), negation(le("a", 5))), compare(A, "=", B)),  # two strings can be equal
    (either(le("a", 5), negation(le("a", 5))), compare(A, "<>", B)),
    (eq("x", 1), TRUE),
    (FALSE, eq("x", 1)),
]


def case_name(value: object) -> str:
    return condition_text(value)[:60] if isinstance(value, Condition) else str(value)


@pytest.mark.parametrize(("f", "g"), YES, ids=case_name)
def test_covers(f: Condition, g: Condition) -> None:
    """These implications hold, and are found."""
    assert covers(f, g)
    assert covers(prepare(f), prepare(g))


@pytest.mark.parametrize(("f", "g"), NO, ids=case_name)
def test_does_not_cover(f: Condition, g: Condition) -> None:
    """These do not hold (or rest on arithmetic), so the answer is no."""
    assert not covers(f, g)
    assert not covers(prepare(f), prepare(g))


@pytest.mark.parametrize("f", [f for pair in (*YES, *NO) for f in pair], ids=case_name)
def test_every_filter_covers_itself(f: Condition) -> None:
    """Also where it holds keys that nothing is known about."""
    assert covers(f, f)
    assert covers(f, both(f, gt("other", 1)))
    assert covers(either(f, gt("other", 1)), f)


@pytest.mark.parametrize(
    ("f", "g", "expected"),
    [
        (gt("x", 3), lt("x", 5), True),
        (gt("x", 5), lt("x", 5), False),
        (gt("x", 5), le("x", 5), False),
        (ge("x", 5), le("x", 5), True),
        (gt("x", 5), eq("x", "a"), False),
        (gt("x", 5), gt("y", 5), True),
        (missing("x"), ne("x", 5), False),
        (negation(gt("x", 5)), negation(le("x", 5)), True),  # NaN satisfies both
        (like("s", "ab%"), like("s", "a_c"), True),
        (like("s", "%padres"), like("s", "%dress"), False),
        (like("s", "%a"), gt("x", 1), True),
        (gt(SUM, 3), lt(SUM, 2), False),
        (gt(SUM, 3), gt("x", 2), None),
        (FALSE, TRUE, False),
        (TRUE, TRUE, True),
        (either(gt("x", 5), gt(SUM, 1)), eq("x", 7), None),
    ],
    ids=case_name,
)
def test_overlaps(f: Condition, g: Condition, expected: bool | None) -> None:
    """True and False are certain, None is not known."""
    assert overlaps(f, g) is expected
    assert overlaps(g, f) is expected


def test_filters_offer_both_relations() -> None:
    """Also that nothing is known: None must not be read as disjoint."""
    assert Filter("x > 1").covers(Filter("x > 2 AND s = 'a'"))
    assert not Filter("x > 2").covers(Filter("x > 1"))
    assert Filter("x > 2").overlaps(Filter("x < 3")) is True
    assert Filter("x > 2").overlaps(Filter("x < 2")) is False
    assert Filter("x + y > 2").overlaps(Filter("x < 2")) is None


def test_literals_of_equal_value_and_different_type_are_told_apart() -> None:
    """Python finds the trees equal; their meaning differs, and no cache may mix them up."""
    number, boolean = eq("x", 1), eq("x", True)
    assert number == boolean
    assert condition_text(number) != condition_text(boolean)
    assert not covers(number, boolean)
    assert covers(eq("x", 1.0), number)


def alternating(depth: int) -> Condition:
    tree: Condition = gt("x", 1)
    for level in range(depth):
        tree = Not(And((tree, Or((gt(f"y{level}", level), lt("x", level)))))) if level % 2 else Not(tree)
    return tree


def test_deep_trees_are_no_problem() -> None:
    """Nesting far beyond what the parser accepts neither crashes nor takes long."""
    deep: Condition = like("x", "%a%")
    for level in range(200):
        pattern = like("x", f"%{level}_")
        deep = Not(And((deep, pattern)) if level % 2 else Or((deep, pattern)))
    for tree in (deep, alternating(200)):
        assert covers(tree, tree)
        assert count_calls(partial(covers, tree, tree)) < 1_000_000
        assert count_calls(partial(overlaps, tree, tree)) < 1_000_000


def from_frames_down(frames: int, work: Callable[[], None]) -> None:
    if frames:
        from_frames_down(frames - 1, work)
    else:
        work()


@pytest.mark.parametrize("leaf", ["x > {0}", "s LIKE '%{0}_'", "y{0} > {0}", "a + b > {0}"])
def test_the_deepest_filters_that_parse_are_compared_from_deep_in_the_stack(leaf: str) -> None:
    """AND and OR alternate twice for each parenthesis, up to the ceiling of the parser's limits."""
    text = "TRUE"
    for level in range(DEPTH_CEILING):
        text = f"{leaf.format(level)} OR {leaf.format(level + 1)} AND ({text})"
    deepest = Filter(text, limits=FilterLimits(depth_max=DEPTH_CEILING))

    def compare_deepest() -> None:
        assert deepest.covers(deepest)
        assert deepest.overlaps(deepest) is not False

    from_frames_down(300, compare_deepest)


def exploding(width: int) -> Condition:
    return And(tuple(Or((gt(f"a{i}", i), lt(f"b{i}", i))) for i in range(width)))


def hostile() -> list[Condition]:
    return [
        exploding(1000),
        Not(Or(tuple(And((gt(f"a{i}", i), lt(f"b{i}", i))) for i in range(1000)))),
        And(tuple(Or(tuple(both(eq("x", i * j), gt("y", j)) for j in range(20))) for i in range(100))),
        Or(tuple(both(gt("x", i), lt("y", i)) for i in range(1000))),
        Or(tuple(both(gt("x", i), lt("y", i), like("s", f"%{i}%_a")) for i in range(100))),
        And(tuple(ne("x", i) for i in range(4000))),
        Or(tuple(eq("x", i) for i in range(4000))),
        And(tuple(like("s", f"%{i}_%", negated=True) for i in range(500))),
        And(tuple(like(f"s{i}", "%a____________") for i in range(500))),
        And(tuple(both(like(f"s{i}", "%a____________"), like(f"s{i}", "%b___________")) for i in range(200))),
        both(one_of("x", *range(4000)), Or(tuple(both(one_of("x", *range(i, 4000)), gt("y", i)) for i in range(60)))),
    ]


def test_hostile_filters_cost_a_bounded_time() -> None:
    """Normal form and comparison give up in time, and still find that a filter covers itself."""
    prepared: list[Normal] = []
    for condition in hostile():
        assert count_calls(lambda: prepared.append(prepare(condition))) < 5_000_000  # noqa: B023  # done at once
        assert len(prepared[-1].boxes) <= BOXES_MAX
    for f, g in zip(prepared, [*prepared[1:], prepared[0]], strict=True):
        assert count_calls(partial(covers, f, g)) < 2_000_000
        assert count_calls(partial(overlaps, f, g)) < 2_000_000
    for f in prepared:
        for g in prepared:
            assert covers(f, g) or f is not g
            overlaps(f, g)


def test_an_explosion_still_covers_its_own_conjunctions() -> None:
    """What was too much to expand is one key, equal by its text."""
    f = exploding(30)
    assert isinstance(f, And)
    assert covers(f, And((*f.operands, gt("z", 1))))
    assert not covers(f, exploding(29))
    assert covers(exploding(29), f)
