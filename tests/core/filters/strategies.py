"""Random filters and messages that meet each other: few names, values that collide, and the edges of every type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from postroad.core.batch.batch import Batch
from postroad.core.filters.evaluate import like
from postroad.core.filters.language import ast

COLUMN_TYPES: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "j.k": pa.int64(),
    "x": pa.float64(),
    "y": pa.float64(),
    "s": pa.string(),
    "a name": pa.string(),
    "not": pa.bool_(),
    "flag": pa.bool_(),
    "raw": pa.binary(),
    "r\N{LATIN SMALL LETTER E WITH ACUTE}": pa.binary(),
}
NAMES = [*COLUMN_TYPES, "gone"]

EDGES = [
    0,
    1,
    -1,
    2,
    3,
    10,
    2**31,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1024,
    2**63 - 1,
    -(2**53) - 1,
    -(2**63),
    -(2**63) + 1,
]
ints = st.sampled_from(EDGES) | st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)
finite_floats = (
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.5, 2.5, 10.0, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 1e308, -1e308, 5e-324])
    | st.integers(-5, 5).map(float)
    | st.floats(allow_nan=False, allow_infinity=False)
)
floats = finite_floats | st.sampled_from([float("nan"), float("inf"), float("-inf")])
ALPHABET = "abA%_\\'! \n\x00\N{LATIN SMALL LETTER E WITH ACUTE}\N{CARROT}"
strings = (
    st.sampled_from(["", "a", "ab", "aab", "abab", "%", "_", "TRUE", "1"]) | st.text(ALPHABET, max_size=6) | st.text(max_size=4)
)
blobs = st.sampled_from([b"", b"a", b"\xff", b"\x00\x80"]) | st.binary(max_size=3)
OF_TYPE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): ints,
    pa.float64(): floats,
    pa.string(): strings,
    pa.bool_(): st.booleans(),
    pa.binary(): blobs,
}

rows = st.fixed_dictionaries({}, optional={name: OF_TYPE[kind] for name, kind in COLUMN_TYPES.items()})
messages = st.lists(rows, min_size=1, max_size=12)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], Batch]:
    """Messages and the same as a batch, which may be a slice of a longer one."""
    kept = draw(messages)
    before = draw(st.lists(rows, max_size=9))
    whole = batch_of([*before, *kept])
    return kept, Batch(whole.columns.slice(len(before), len(kept)))


def batch_of(messages: Sequence[Mapping[str, Any]]) -> Batch:
    """Make columns of messages. A column that no message fills is left out."""
    columns = {
        name: pa.array([message.get(name) for message in messages], kind)
        for name, kind in COLUMN_TYPES.items()
        if any(message.get(name) is not None for message in messages)
    }
    return Batch.from_columns(bytes(16 * len(messages)), [b""] * len(messages), columns)


def one_row(message: Mapping[str, Any]) -> Batch:
    """Make a batch of one message, each column of the type its value has."""
    return Batch.from_columns(bytes(16), [b""], {name: pa.array([value]) for name, value in message.items()})


# Trees, as the parser makes them

attributes = st.sampled_from(NAMES).map(ast.Attribute)
numbers = (ints | finite_floats).map(ast.Literal)
literals = numbers | strings.map(ast.Literal) | st.booleans().map(ast.Literal)
number_values: st.SearchStrategy[ast.Value] = st.recursive(
    attributes | numbers,
    lambda inner: (
        st.builds(ast.Arithmetic, st.sampled_from(["+", "-", "*", "/"]), inner, inner)
        | st.builds(ast.Sign, st.sampled_from(["+", "-"]), inner.filter(lambda value: not isinstance(value, ast.Literal)))
    ),
    max_leaves=4,
)
values: st.SearchStrategy[ast.Value] = number_values | literals
operators: st.SearchStrategy[ast.ComparisonOperator] = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
equalities: st.SearchStrategy[ast.ComparisonOperator] = st.sampled_from(["=", "<>"])


@st.composite
def comparisons(draw: st.DrawFn) -> ast.Comparison:
    operator = draw(operators)
    sides = values if operator in {"=", "<>"} else number_values
    left, right = draw(sides), draw(sides)
    if None not in {static_kind(left), static_kind(right)} and static_kind(left) != static_kind(right):
        right = left  # anything else would be refused
    return ast.Comparison(operator, left, right)


@st.composite
def typed_comparisons(draw: st.DrawFn) -> ast.Condition:
    """Compare an attribute with a literal of its own kind, either way round: the leaf that can come out true."""
    name = draw(st.sampled_from(list(COLUMN_TYPES)))
    kind = COLUMN_TYPES[name]
    if kind == pa.binary():
        return ast.Comparison(draw(equalities), ast.Attribute(name), ast.Attribute(draw(st.sampled_from(NAMES))))
    is_number = kind in {pa.int64(), pa.float64()}
    literal = draw(numbers if is_number else OF_TYPE[kind].map(ast.Literal))
    if is_number and draw(st.booleans()):
        return ast.Between(ast.Attribute(name), literal, draw(numbers), draw(st.booleans()))
    operator = draw(operators if is_number else equalities)
    sides: list[ast.Value] = [ast.Attribute(name), literal]
    return ast.Comparison(operator, *(sides if draw(st.booleans()) else sides[::-1]))


def static_kind(value: ast.Value) -> str | None:
    match value:
        case ast.Literal(constant):
            return {bool: "boolean", str: "string"}.get(type(constant), "number")
        case ast.Arithmetic() | ast.Sign("-"):
            return "number"
        case _:
            return None


patterns = st.text("ab%_%_\\!\n\N{CARROT}", max_size=10)


@st.composite
def likes(draw: st.DrawFn) -> ast.Like:
    operand = draw(attributes | attributes.map(lambda name: ast.Sign("+", name)) | strings.map(ast.Literal))
    pattern, escape, _ = like.canonical(draw(patterns | strings), draw(st.sampled_from([None, "\\", "!", "%", "_", "a"])))
    return ast.Like(operand, pattern, escape, draw(st.booleans()))


leaves: st.SearchStrategy[ast.Condition] = st.one_of(
    comparisons(),
    typed_comparisons(),
    attributes,
    st.booleans().map(ast.Literal),
    st.builds(ast.Between, number_values, number_values, number_values, st.booleans()),
    st.builds(ast.In, attributes | values, st.lists(literals, min_size=1, max_size=7).map(tuple), st.booleans()),
    likes(),
    st.builds(ast.IsNull, attributes | values, st.booleans()),
)


def _join(kind: type[ast.And | ast.Or], operands: list[ast.Condition]) -> ast.Condition:
    flat: list[ast.Condition] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, kind) else [operand])
    return kind(tuple(flat))


conditions: st.SearchStrategy[ast.Condition] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(ast.Not, inner),
        st.lists(inner, min_size=2, max_size=4).map(lambda operands: _join(ast.And, operands)),
        st.lists(inner, min_size=2, max_size=4).map(lambda operands: _join(ast.Or, operands)),
    ),
    max_leaves=6,
)
