"""What a filter may cost.

A filter comes from outside, so its length, its number of tokens, its nesting, its IN lists and its LIKE patterns are bounded
before any work is done that grows with them. Evaluation needs no bound of its own: it is linear in the tree and in the data
(see `like` for the one construct where that takes care).

`depth_max` bounds the parser's nesting (parentheses, NOT, signs) and the height of an arithmetic expression. A tree is then
never higher than three times that (an OR and an AND for each parenthesis, and one expression), which is why every walk over a
tree may recurse; `DEPTH_CEILING` keeps a configured value inside what Python's default stack allows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from postroad.errors import InvalidValueError

DEPTH_CEILING: Final = 64


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """Bounds on one filter; exceeding one is a `FilterLimitError`."""

    length_max: int = 65_536
    """Characters of the text, as it is given and as `str()` writes it."""
    tokens_max: int = 16_384
    """Names, literals, operators and keywords."""
    depth_max: int = 64
    """Nested parentheses, NOTs and signs; also the number of `+ - * /` that may be chained in one expression."""
    in_values_max: int = 4_096
    """Values of one IN list."""
    like_length_max: int = 1_024
    """Characters and wildcards of one LIKE pattern."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidValueError(f"{field.name} must be at least 1")
        if self.depth_max > DEPTH_CEILING:
            raise InvalidValueError(f"depth_max is at most {DEPTH_CEILING}, not {self.depth_max}")


DEFAULT_LIMITS: Final = FilterLimits()
