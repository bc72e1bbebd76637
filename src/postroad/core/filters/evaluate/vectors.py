"""The values of a column: what `values` says for one value, over numpy.

A `Vector` is one attribute (or one arithmetic expression) over all rows of a batch: values of one kind, and where they are known.
Numbers are int64 or float64 arrays that share the column's memory, booleans are unpacked, strings and bytes stay Arrow arrays.
The value of a row that is not known is whatever lies in memory there, so every mask made from values is cut to the known rows
in the end.

Ints and floats compare by exact value. Against a constant, the constant is moved once to the column's type (`i < 2.5` is
`i < 3`; `f < 2^53 + 1` is `f <= 2^53`). Between two columns the ints are rounded to float: rounding keeps order, so only rows
that come out equal need a second look, and those only where floats are sparser than ints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from postroad.core.filters.evaluate.bitmaps import Mask, bits, truth
from postroad.core.filters.language.ast import ArithmeticOperator, ComparisonOperator
from postroad.core.filters.language.values import EQUALITY, FLIPPED, INT64_MAX, INT64_MIN, Kind
from postroad.errors import BatchError

Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Number: TypeAlias = int | float
Rows: TypeAlias = Mask | bool
"""Which rows; a plain bool stands for all or none of them."""

_EXACT_FLOAT_INTS: Final = float(1 << 53)
_INT64_END: Final = float(1 << 63)

UFUNCS: Final[dict[ComparisonOperator, np.ufunc]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


class Vector(NamedTuple):
    """`known` is None when every row is known. A named tuple because one is made for every column of every evaluation."""

    kind: Kind
    values: Any
    known: Mask | None


def decode(column: pa.Array[Any], name: str) -> Vector | None:
    """Read a column; None when it is NULL in every row."""
    rows = len(column)
    nulls = column.null_count
    if nulls == rows:
        return None
    decoder = _DECODERS.get(column.type.id)
    if decoder is None:
        raise _unreadable(column, name)
    known = None
    if nulls:
        validity = column.buffers()[0]
        assert validity is not None
        known = bits(validity, column.offset, rows)
    kind, values = decoder(column)
    return Vector(kind, values, known)


def listed(column: pa.Array[Any], name: str) -> tuple[Kind, list[Any]] | None:
    """Do as `decode`, for a column of few rows: their values one by one, None for NULL."""
    if column.null_count == len(column):
        return None
    kind = _KINDS.get(column.type.id)
    if kind is None:
        raise _unreadable(column, name)
    return kind, column.to_pylist()


def _unreadable(column: pa.Array[Any], name: str) -> BatchError:
    return BatchError(f"attribute {name!r} is a column of type {column.type}, which no filter can read")


def _decode_fixed_width(column: pa.Array[Any], dtype: type[np.int64 | np.float64]) -> tuple[Kind, Numbers]:
    buffer = column.buffers()[1]
    assert buffer is not None
    return Kind.NUMBER, cast("Numbers", np.frombuffer(cast("Any", buffer), dtype, count=len(column), offset=column.offset * 8))


_DECODERS: Final[dict[int, Callable[[pa.Array[Any]], tuple[Kind, Any]]]] = {
    pa.int64().id: lambda column: _decode_fixed_width(column, np.int64),
    pa.float64().id: lambda column: _decode_fixed_width(column, np.float64),
    pa.bool_().id: lambda column: (Kind.BOOLEAN, truth(column)),
    pa.string().id: lambda column: (Kind.STRING, column),
    pa.binary().id: lambda column: (Kind.BYTES, column),
}
_KINDS: Final[dict[int, Kind]] = {
    pa.int64().id: Kind.NUMBER,
    pa.float64().id: Kind.NUMBER,
    pa.bool_().id: Kind.BOOLEAN,
    pa.string().id: Kind.STRING,
    pa.binary().id: Kind.BYTES,
}


def cut(mask: Rows, known: Mask | None) -> Rows:
    """Keep only rows that are known."""
    if known is None or mask is False:
        return mask
    return known if mask is True else np.logical_and(mask, known)


def both_known(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None or right is None:
        return right if left is None else left
    return np.logical_and(left, right)


# Comparing with a constant


@dataclass(frozen=True, slots=True)
class NumberTest:
    """A comparison of a number column with a constant, as it is done on an int and on a float column.

    `ints` is a bool when the comparison comes out so for every int.
    """

    ints: tuple[ComparisonOperator, int] | bool
    floats: tuple[ComparisonOperator, float]

    def holds(self, values: Numbers) -> Rows:
        if values.dtype == np.float64:
            operator, constant = self.floats
            return cast("Mask", UFUNCS[operator](values, constant))
        if isinstance(self.ints, bool):
            return self.ints
        return cast("Mask", UFUNCS[self.ints[0]](values, self.ints[1]))


def number_test(operator: ComparisonOperator, constant: Number) -> NumberTest:
    return NumberTest(_int_test(operator, constant), _float_test(operator, constant))


def _int_test(operator: ComparisonOperator, constant: Number) -> tuple[ComparisonOperator, int] | bool:
    """Find the comparison with an int that every int64 passes exactly when it passes the one with `constant`."""
    if isinstance(constant, int):
        return operator, constant
    if math.isnan(constant):
        return operator == "<>"
    if constant >= _INT64_END:
        return operator in {"<>", "<", "<="}
    if constant < -_INT64_END:
        return operator in {"<>", ">", ">="}
    if operator in EQUALITY:
        return (operator, int(constant)) if constant.is_integer() else operator == "<>"
    # No integer lies between the constant and its floor or ceiling.
    bound = math.ceil(constant) if operator in {"<", ">="} else math.floor(constant)
    return operator, bound


def _float_test(operator: ComparisonOperator, constant: Number) -> tuple[ComparisonOperator, float]:
    """Find the comparison with a float that every float passes exactly when it passes the one with `constant`."""
    nearest = float(constant)
    if nearest == constant or math.isnan(nearest):
        return operator, nearest
    if operator in EQUALITY:  # no float equals it; NaN is as unequal to NaN as every other float
        return operator, math.nan
    if nearest > constant:  # no float lies between
        return ("<" if operator in {"<", "<="} else ">="), nearest
    return ("<=" if operator in {"<", "<="} else ">"), nearest


# Comparing two vectors


def compare(operator: ComparisonOperator, left: Vector, right: Vector) -> Rows | None:
    """Compare row by row; None when the kinds do not compare, which is unknown in every row."""
    if left.kind is not right.kind:
        return None
    if left.kind is Kind.NUMBER:
        return _compare_numbers(operator, left.values, right.values)
    if operator not in EQUALITY:
        return None
    if left.kind is Kind.BOOLEAN:
        return cast("Mask", UFUNCS[operator](left.values, right.values))
    equal = truth(pc.equal(left.values, right.values))
    return equal if operator == "=" else np.logical_not(equal, out=equal)


def _compare_numbers(operator: ComparisonOperator, left: Numbers, right: Numbers) -> Mask:
    if left.dtype == right.dtype:
        return cast("Mask", UFUNCS[operator](left, right))
    if left.dtype == np.float64:
        operator, left, right = FLIPPED[operator], right, left
    rounded = left.astype(np.float64)
    result = UFUNCS[operator](rounded, right)
    doubtful = np.logical_and(rounded == right, np.abs(right) >= _EXACT_FLOAT_INTS)
    for row in doubtful.nonzero()[0]:
        result[row] = UFUNCS[operator](int(left[row]) - int(right[row]), 0)
    return cast("Mask", result)


# Arithmetic


def negate(vector: Vector) -> Vector:
    if vector.values.dtype == np.float64:
        return Vector(Kind.NUMBER, -vector.values, vector.known)
    return _without(vector.values == INT64_MIN, -vector.values, vector.known)


def arithmetic(operator: ArithmeticOperator, left: Vector | Number, right: Vector | Number) -> Vector:
    """Compute with numbers; at least one side is a vector."""
    left_values, left_known = _operand(left)
    right_values, right_known = _operand(right)
    known = both_known(left_known, right_known)
    with np.errstate(all="ignore"):
        if operator == "/":
            quotient = np.divide(left_values, right_values, dtype=np.float64)
            return _without(np.broadcast_to(right_values == 0, quotient.shape), quotient, known)
        result = _RESULT[operator](left_values, right_values)
        if result.dtype == np.float64:
            return Vector(Kind.NUMBER, result, known)
        return _without(_OVERFLOWS[operator](left_values, right_values, result), result, known)


def _operand(operand: Vector | Number) -> tuple[Any, Mask | None]:
    if isinstance(operand, Vector):
        return operand.values, operand.known
    return (np.int64(operand) if isinstance(operand, int) else np.float64(operand)), None


def _without(null: Mask, values: Numbers, known: Mask | None) -> Vector:
    """Make a vector that is NULL in more rows than its operands were."""
    if not null.any():
        return Vector(Kind.NUMBER, values, known)
    return Vector(Kind.NUMBER, values, both_known(known, np.logical_not(null)))


def _product_overflows(left: Any, right: Any, _: Any) -> Mask:
    """Compute the product in floats, off by far less than a factor of two, and exactly only where that comes near 2^63."""
    approximate = np.multiply(left, right, dtype=np.float64)
    overflows = np.abs(approximate) >= _INT64_END / 2
    if overflows.any():
        lefts, rights = np.broadcast_to(left, overflows.shape), np.broadcast_to(right, overflows.shape)
        for row in overflows.nonzero()[0]:
            overflows[row] = not INT64_MIN <= int(lefts[row]) * int(rights[row]) <= INT64_MAX
    return cast("Mask", overflows)


_RESULT: Final[dict[str, np.ufunc]] = {"+": np.add, "-": np.subtract, "*": np.multiply}
_OVERFLOWS: Final[dict[str, Callable[[Any, Any, Any], Mask]]] = {
    "+": lambda left, right, result: cast("Mask", ((left ^ result) & (right ^ result)) < 0),
    "-": lambda left, right, result: cast("Mask", ((left ^ right) & (left ^ result)) < 0),
    "*": _product_overflows,
}


# Membership


class NumberSet:
    """The numbers of an IN list, for int and for float columns."""

    __slots__ = ("_floats", "_ints")

    def __init__(self, numbers: list[Number]) -> None:
        ints = {int(number) for number in numbers if number == int(number) and INT64_MIN <= number <= INT64_MAX}
        floats = {float(number) for number in numbers if float(number) == number}
        self._ints = np.array(sorted(ints), np.int64)
        self._floats = np.array(sorted(floats), np.float64)

    def contains(self, values: Numbers) -> Rows:
        listed: Numbers = self._floats if values.dtype == np.float64 else self._ints
        if len(listed) <= 4:
            return _equals_any(values, listed)
        places = np.searchsorted(listed, values)
        places[places == len(listed)] = 0
        return cast("Mask", listed[places] == values)


def _equals_any(values: Numbers, listed: Numbers) -> Rows:
    result: Rows = False
    for number in listed:
        equal = values == number
        result = equal if result is False else np.logical_or(result, equal, out=equal)
    return result
