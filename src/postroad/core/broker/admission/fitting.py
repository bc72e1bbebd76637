"""What would fit in place of a subscription that is refused: the widest range of one of its numeric attributes.

A narrower range overlaps fewer advertisements. A window of the attribute brings all advertisements
that it overlaps, at their full rate, so a part of a window that fits, fits too. Only ends of
advertised ranges matter as ends of a window. With the advertisements in order of their ends, the
load of a window is the sum of all less those that end before it and those that begin behind it.

Each broker that refuses says what it could take. The intersection of what they say fits at all of
them, and at those that did not refuse. With one broker it is the widest range; with several there
may be a wider one. Where the criterion lets some brokers refuse, those with the least room are left
out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from postroad.core.filters.algebra.normal_form import ATTRIBUTE_KEY
from postroad.core.filters.algebra.spans import NUMBER_ENDS, NumberCut
from postroad.core.filters.filter import Filter
from postroad.core.filters.language.ast import And, Attribute, Comparison, ComparisonOperator, Condition, Literal
from postroad.core.protocol.admission import MEMORY, NO_ANSWER, FittingRange, Refusal
from postroad.errors import FilterError

FITTING_NODES_MAX: Final = 4_096
ATTRIBUTES_MAX: Final = 8
Span: TypeAlias = tuple[NumberCut, NumberCut]
Brought: TypeAlias = Sequence[tuple[Filter, int]]  # advertised filters, with what each brings


def fitting_ranges(filter_: Filter, shortages: Sequence[tuple[Brought, int]]) -> list[FittingRange]:
    """Return for each numeric attribute the widest range with which the filter fits; each shortage has (brought, available)."""
    found = []
    for name, whole in numeric_ranges(filter_).items():
        loads = [_LinkLoad(name, whole, brought, available) for brought, available in shortages]
        window = _widest(whole, loads)
        if window is not None:
            found.append(_as_range(name, window))
    return found


def numeric_ranges(filter_: Filter) -> dict[str, Span]:
    """Return the attributes that a filter limits to one range of numbers, with that range."""
    boxes = filter_.normal.boxes
    if len(boxes) != 1 or not filter_.normal.is_independent:
        return {}
    ranges: dict[str, Span] = {}
    for key, constraint in boxes[0].items():
        is_range = not constraint.flags and constraint.strings == () and len(constraint.numbers) == 2
        if is_range and len(ranges) < ATTRIBUTES_MAX:
            ranges[key.removeprefix(ATTRIBUTE_KEY)] = (constraint.numbers[0], constraint.numbers[1])
    return ranges


def common_range(refusals: Iterable[Refusal]) -> list[FittingRange]:
    """Return the ranges, one per attribute, that all refusing brokers could take."""
    common: dict[str, Span] | None = None
    for refusal in refusals:
        spans = {each.attribute: _as_span(each) for each in refusal.ranges}
        if common is None:
            common = spans
            continue
        cut = {
            name: (max(span[0], spans[name][0]), min(span[1], spans[name][1])) for name, span in common.items() if name in spans
        }
        common = {name: span for name, span in cut.items() if span[0] < span[1]}
    return [_as_range(name, span) for name, span in (common or {}).items()]


def fitting_filter(filter_: Filter, refusals: Iterable[Refusal]) -> Filter | None:
    """Return the filter with the range that keeps most of what it asked for; None if none is known to fit."""
    whole = numeric_ranges(filter_)
    best: tuple[float, FittingRange] | None = None
    for each in common_range(refusals):
        if each.attribute in whole:
            share = _share(_as_span(each), whole[each.attribute])
            if best is None or share > best[0]:
                best = share, each
    if best is None:
        return None
    ends = _ends(best[1], whole[best[1].attribute])
    kept = [each for each in _operands(filter_.condition) if not _follows(each, ends)]
    try:
        return Filter.from_condition(And((*kept, *ends)))
    except FilterError:
        return None  # it is as long as a filter may be


def decisive_refusals(refusals: Sequence[Refusal], allowed: int) -> list[Refusal]:
    """Return the refusals that must go for a subscription to be admitted, if `allowed` brokers may refuse.

    There are none if a smaller subscription would not help, as where a broker did not answer or has no memory.
    """
    least: dict[int, int] = {}  # broker -> the least that it has left of a resource
    hopeless = {each.broker for each in refusals if each.resource in {NO_ANSWER, MEMORY}}
    for each in refusals:
        if each.broker not in hopeless:
            least[each.broker] = min(each.available, least.get(each.broker, each.available))
    spare = allowed - len(hopeless)
    if spare < 0:
        return []
    kept = sorted(least, key=lambda broker: (least[broker], broker))[spare:]
    return [each for each in refusals if each.broker in kept]


class _LinkLoad:
    """What the windows of one attribute bring to one resource."""

    def __init__(self, name: str, whole: Span, brought: Brought, available: int) -> None:
        spans = [(*_span_of(advertised, name), rate) for advertised, rate in brought]
        spans = [each for each in spans if each[0] < whole[1] and each[1] > whole[0]]
        begins = sorted((low, rate) for low, _, rate in spans)
        ends = sorted((high, rate) for _, high, rate in spans)
        self.cuts = [cut for low, high, _ in spans for cut in (low, high) if whole[0] < cut < whole[1]]
        self._available = available
        self._begins, self._begun = [cut for cut, _ in begins], [0, *accumulate(rate for _, rate in begins)]
        self._ends, self._ended = [cut for cut, _ in ends], [0, *accumulate(rate for _, rate in ends)]

    def fits(self, low: NumberCut, high: NumberCut) -> bool:
        begun = self._begun[bisect_left(self._begins, high)]  # those that begin before the window ends
        return begun - self._ended[bisect_right(self._ends, low)] <= self._available


def _widest(whole: Span, loads: Sequence[_LinkLoad]) -> Span | None:
    cuts = sorted({*whole, *(cut for load in loads for cut in load.cuts)})
    best: Span | None = None
    end = 1
    for begin, low in enumerate(cuts[:-1]):
        end = max(end, begin + 1)
        if not all(load.fits(low, cuts[end]) for load in loads):
            continue  # nothing fits that begins here and reaches as far as before
        while end + 1 < len(cuts) and all(load.fits(low, cuts[end + 1]) for load in loads):
            end += 1
        if best is None or _width((low, cuts[end])) > _width(best):
            best = low, cuts[end]
    return best


def _span_of(filter_: Filter, name: str) -> Span:
    """Return the range of an attribute outside of which no message matches."""
    low: NumberCut | None = None
    high: NumberCut | None = None
    for box in filter_.normal.boxes:
        constraint = box.get(ATTRIBUTE_KEY + name)
        numbers = NUMBER_ENDS if constraint is None else constraint.numbers
        if numbers:
            low = numbers[0] if low is None else min(low, numbers[0])
            high = numbers[-1] if high is None else max(high, numbers[-1])
    return (low, high) if low is not None and high is not None else (NUMBER_ENDS[1], NUMBER_ENDS[0])


def _width(span: Span) -> float:
    return float(span[1][0]) - float(span[0][0])


def _share(span: Span, whole: Span) -> float:
    width, of = _width(span), _width(whole)
    if of == float("inf"):
        return 1.0 if width == of else 0.0
    return width / of if of else 1.0


def _as_range(name: str, span: Span) -> FittingRange:
    (low, below), (high, above) = span
    return FittingRange(name, float(low), float(high), below == 1, above == 0)


def _as_span(given: FittingRange) -> Span:
    return (given.low, 1 if given.low_open else 0), (given.high, 0 if given.high_open else 1)


def _operands(condition: Condition) -> tuple[Condition, ...]:
    if isinstance(condition, And):
        return condition.operands
    return (condition,)


def _follows(condition: Condition, ends: Sequence[Condition]) -> bool:
    """Tell whether a condition holds wherever the ends of a range hold, so that it need not be said beside them."""
    return bool(ends) and Filter.from_condition(condition).covers(Filter.from_condition(And(tuple(ends))))


def _ends(given: FittingRange, whole: Span) -> list[Condition]:
    """Return the conditions that a filter lacks to be within a range."""
    (low, high), name = _as_span(given), Attribute(given.attribute)
    conditions: list[Condition] = []
    if low != whole[0]:
        operator: ComparisonOperator = ">" if given.low_open else ">="
        conditions.append(Comparison(operator, name, Literal(_plain(given.low))))
    if high != whole[1]:
        operator = "<" if given.high_open else "<="
        conditions.append(Comparison(operator, name, Literal(_plain(given.high))))
    return conditions


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
