"""Sets of strings: spans, LIKE patterns, and boolean combinations of them.

Equality, IN, prefixes and their negations are spans (see `spans`), exact and fast. Any other LIKE pattern is kept as it is, and
a combination as a small tree. Whether such a tree is empty is decided by walking the product of its parts' automata, breadth
first, over one character for each class that the parts can tell apart; the walk ends with a shortest member, with the proof
that there is none, or at its budget with `None`, "don't know". Subset is emptiness of `inner AND NOT outer`.

The automaton of a pattern is the bit-parallel one: bit i of the state says that the first i one-character tokens are
consumed; a `%` before token i lets bit i stay. It is also the membership test, in time linear in the string.

The budget bounds the cost of hostile patterns (the deterministic automaton of `%a____________` is exponential); whoever asks
must read "don't know" as the safe answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from postroad.core.filters.algebra import spans
from postroad.core.filters.algebra.spans import STRING_ENDS, Words
from postroad.core.filters.evaluate.like import canonical

STEPS_MAX: Final = 10_000
"""Single steps of a part's automaton before the walk gives up; a few milliseconds."""

_LESS: Final = -1
_GREATER: Final = -2


@dataclass(frozen=True, slots=True)
class PatternSet:
    """A LIKE pattern that is no span: one-character tokens (None is `_`) and a bit for each `%` by the token it precedes."""

    tokens: tuple[str | None, ...]
    loops: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Both:
    """What lies in every part. At least two parts, at most one of them spans, none a `Both`."""

    parts: tuple[Strings, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """What lies in some part. At least two parts, at most one of them spans, none an `Either`."""

    parts: tuple[Strings, ...]


Strings: TypeAlias = Words | PatternSet | Both | Either


def like(pattern: str, escape: str | None = None) -> Strings:
    """Translate a LIKE pattern; spans where it is a plain string, a prefix or everything."""
    pattern, escape, _ = canonical(pattern, escape)
    tokens: list[str | None] = []
    loops = run_start = 0
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            # `%_` and `_%` mean the same: the loop stands at the start of a run of wildcards.
            loops |= 1 << run_start
        elif character == "_":
            tokens.append(None)
        else:
            tokens.append(next(characters) if character == escape else character)
            run_start = len(tokens)
    plain = "".join(token for token in tokens if token is not None)
    if len(plain) == len(tokens) and loops == 0:
        return spans.words([plain])
    if len(plain) == len(tokens) and loops == 1 << len(tokens):
        return spans.prefixed(plain)
    return PatternSet(tuple(tokens), loops)


def complement(strings: Strings) -> Strings:
    if isinstance(strings, tuple):
        return spans.complement(strings, STRING_ENDS)
    if isinstance(strings, PatternSet):
        return PatternSet(strings.tokens, strings.loops, not strings.negated)
    negated = tuple(complement(part) for part in strings.parts)
    return Either(negated) if isinstance(strings, Both) else Both(negated)


def union(parts: Sequence[Strings]) -> Strings:
    plain = [part for part in parts if isinstance(part, tuple)]
    if len(plain) == len(parts):
        return spans.union(plain)
    return complement(intersection([complement(part) for part in parts]))


def intersection(parts: Sequence[Strings]) -> Strings:
    flat = list(_flatten(parts))
    plain = spans.intersection([part for part in flat if isinstance(part, tuple)] or [STRING_ENDS])
    others = list(dict.fromkeys(part for part in flat if not isinstance(part, tuple)))
    if not others:
        return plain
    members = spans.finite_words(plain)
    if members is not None:
        return spans.words([word for word in members if all(contains(part, word) for part in others)])
    if plain == STRING_ENDS:
        return others[0] if len(others) == 1 else Both(tuple(others))
    return Both((plain, *others))


def _flatten(parts: Iterable[Strings]) -> Iterator[Strings]:
    for part in parts:
        if isinstance(part, Both):
            yield from part.parts
        else:
            yield part


def contains(strings: Strings, word: str) -> bool:
    if isinstance(strings, tuple):
        return spans.contains_string(strings, word)
    if isinstance(strings, PatternSet):
        return _matches(strings, word)
    if isinstance(strings, Both):
        return all(contains(part, word) for part in strings.parts)
    return any(contains(part, word) for part in strings.parts)


def _matches(pattern: PatternSet, word: str) -> bool:
    masks, default = _masks(pattern)
    loops, state = pattern.loops, 1
    for character in word:
        state = ((state & masks.get(character, default)) << 1) | (state & loops)
    return bool(state >> len(pattern.tokens) & 1) is not pattern.negated


@lru_cache(maxsize=1024)
def _masks(pattern: PatternSet) -> tuple[dict[str, int], int]:
    """For each character named by the pattern, and for all others, the tokens that accept it."""
    default = sum(1 << i for i, token in enumerate(pattern.tokens) if token is None)
    masks: dict[str, int] = {}
    for i, token in enumerate(pattern.tokens):
        if token is not None:
            masks[token] = masks.get(token, default) | 1 << i
    return masks, default


def within(inner: Strings, outer: Strings) -> bool:
    """Whether `inner` is certainly a subset of `outer`."""
    if isinstance(inner, tuple):
        if isinstance(outer, tuple):
            return spans.within(inner, outer)
        members = spans.finite_words(inner)
        if members is not None:
            return all(contains(outer, word) for word in members)
    return outer in {STRING_ENDS, inner} or is_empty(intersection([inner, complement(outer)])) is True


def is_empty(strings: Strings) -> bool | None:
    """Whether the set has no member; None when the budget did not suffice to tell."""
    if isinstance(strings, tuple):
        return not strings
    return _is_empty(strings)


@lru_cache(maxsize=4096)
def _is_empty(strings: Strings) -> bool | None:
    if any(contains(strings, word) for word in _likely_members(strings)):
        return False
    return _Walk(strings).is_empty()


def _likely_members(strings: Strings) -> Iterator[str]:
    """Offer the shortest words of each pattern and span: they settle most questions without a walk."""
    if isinstance(strings, PatternSet):
        rare = _other_character(strings.tokens)
        for filler in ("", rare):
            pieces = [
                (filler if strings.loops >> i & 1 else "") + (rare if token is None else token)
                for i, token in enumerate(strings.tokens)
            ]
            yield "".join(pieces) + (filler if strings.loops >> len(strings.tokens) else "")
    elif isinstance(strings, tuple):
        yield from (word for _, word in strings[:8:2])
    else:
        for part in strings.parts[:8]:
            yield from _likely_members(part)


def _other_character(tokens: Sequence[str | None]) -> str:
    used = {token for token in tokens if token is not None}
    return next((c for c in map(chr, range(ord("a"), 0xD800)) if c not in used), spans.LAST_CHARACTER)


class _Walk:
    """A breadth-first walk of the product automaton of all leaves of a tree of string sets."""

    def __init__(self, strings: Strings) -> None:
        patterns: dict[PatternSet, int] = {}
        cuts: dict[str, int] = {}
        self._accept = self._compile(strings, patterns, cuts)
        self._patterns = [(pattern.loops, *_masks(pattern)) for pattern in patterns]
        self._cuts = list(cuts)
        self._alphabet = _alphabet(patterns, cuts)

    def _compile(self, strings: Strings, patterns: dict[PatternSet, int], cuts: dict[str, int]) -> Callable[[_State], bool]:
        """Turn the tree into a test of a state, and number its leaves."""
        if isinstance(strings, PatternSet):
            at = patterns.setdefault(PatternSet(strings.tokens, strings.loops), len(patterns))
            last, wanted = len(strings.tokens), not strings.negated
            return lambda state: bool(state[0][at] >> last & 1) is wanted
        if isinstance(strings, tuple):
            finite = [(text, cuts.setdefault(text, len(cuts))) for above_all, text in strings if not above_all]
            return lambda state: bool(sum(_has_reached(state[1][at], text) for text, at in finite) & 1)
        tests = [self._compile(part, patterns, cuts) for part in strings.parts]
        if isinstance(strings, Both):
            return lambda state: all(test(state) for test in tests)
        return lambda state: any(test(state) for test in tests)

    def is_empty(self) -> bool | None:
        start: _State = ((1,) * len(self._patterns), (0,) * len(self._cuts))
        cost = max(1, len(self._patterns) + len(self._cuts)) * len(self._alphabet)
        budget = STEPS_MAX
        seen, frontier = {start}, [start]
        while frontier:
            following: list[_State] = []
            for state in frontier:
                if self._accept(state):
                    return False
                budget -= cost
                if budget < 0:
                    return None
                for character in self._alphabet:
                    successor = self._after(state, character)
                    if successor not in seen:
                        seen.add(successor)
                        following.append(successor)
            frontier = following
        return True

    def _after(self, state: _State, character: str) -> _State:
        sets, places = state
        return (
            tuple(
                ((s & masks.get(character, default)) << 1) | (s & loops)
                for s, (loops, masks, default) in zip(sets, self._patterns, strict=True)
            ),
            tuple(_compare(place, text, character) for place, text in zip(places, self._cuts, strict=True)),
        )


_State: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def _compare(place: int, text: str, character: str) -> int:
    """Compare a word with `text` while reading it: equal up to `place`, or decided."""
    if place < 0:
        return place
    if place == len(text) or character > text[place]:
        return _GREATER
    return place + 1 if character == text[place] else _LESS


def _has_reached(place: int, text: str) -> bool:
    """Whether the word read so far, taken as a whole, is `text` or greater."""
    return place in {_GREATER, len(text)}


def _alphabet(patterns: Iterable[PatternSet], cuts: Iterable[str]) -> list[str]:
    """Choose one character of each class the leaves can tell apart: all named ones, and one between any two neighbours."""
    compared = {character for text in cuts for character in text}
    named = compared.union(token for pattern in patterns for token in pattern.tokens if token is not None)
    if not compared:
        return [*sorted(named), _other_character(sorted(named))]
    return sorted(named.union(["\0"], [spans.next_character(c) for c in named if c != spans.LAST_CHARACTER]))
