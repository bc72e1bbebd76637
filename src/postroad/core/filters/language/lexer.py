r"""Text to tokens.

One regular expression finds each token in one pass. Its quantifiers are possessive or run over one character class, so it never
backtracks: a megabyte of quotes costs a megabyte of work.

A token is (kind, value, position). The kind of a keyword or operator is its canonical text (`AND`, `<=`); the other kinds are
`NAME`, `INTEGER`, `FLOAT`, `STRING` and `END`, with the name, number or string as the value.

Numbers are Java's: `042` is octal, `0x2A` hexadecimal, a suffix `L` is allowed on integers and `d` or `f` on floats (all floats
are doubles). An integer literal fits in int64, except that 9223372036854775808 passes here for the parser to put behind a minus.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple, TypeAlias

from postroad.core.filters.language.limits import FilterLimits
from postroad.core.filters.language.values import INT64_MAX
from postroad.errors import FilterLimitError, FilterSyntaxError

NAME: Final = "name"
INTEGER: Final = "integer"
FLOAT: Final = "float"
STRING: Final = "string"
END: Final = "end"

TokenValue: TypeAlias = str | int | float

KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE"})

_TOKEN: Final = re.compile(
    r"""
    [ \t\n\r\f]*+
    (?: ([^\W\d][\w$.]*+ | \$[\w$.]*+)                                               # 1 name or keyword
      | (<> | <= | >= | [=<>+\-*/(),])                                               # 2 operator
      | ('[^']*+(?:''[^']*+)*+')                                                     # 3 string
      | ((?: [0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)? | \.[0-9]++(?:[eE][+-]?[0-9]++)?
           | [0-9]++[eE][+-]?[0-9]++ )[dDfF]? (?![\w$.]) | [0-9]++[dDfF](?![\w$.]))  # 4 float
      | ((?: 0[xX][0-9a-fA-F]++ | [0-9]++ )[lL]? (?![\w$.]))                         # 5 integer
      | ("[^"]*+(?:""[^"]*+)*+")                                                     # 6 quoted name
      | (.)                                                                          # 7 anything else: an error
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"[^\W\d][\w$.]*+|\$[\w$.]*+")
_WORD: Final = re.compile(r"[\w$.]*+")
_SPACE: Final = " \t\n\r\f"
_UNCLOSED: Final = {
    "'": "the string has no closing quote (a quote inside a string is written twice)",
    '"': "the quoted name has no closing quote (a quote inside a name is written twice)",
}
_HINTS: Final = {
    "!": "write <> for 'not equal' and NOT for negation",
    "&": "write AND",
    "|": "write OR",
    ";": "a filter is one condition, without a semicolon",
    "%": "'%' has a meaning only inside a LIKE pattern, and there is no remainder operator",
}


class Tokens(NamedTuple):
    """Three parallel lists; the last entry is `END`."""

    kinds: list[str]
    values: list[TokenValue]
    positions: list[int]


def tokenize(text: str, limits: FilterLimits) -> Tokens:
    _check_text(text, limits)
    kinds: list[str] = []
    values: list[TokenValue] = []
    positions: list[int] = []
    tokens_max = limits.tokens_max
    # Without the blanks at the end every position starts a token, so no search ever runs over text twice.
    for match in _TOKEN.finditer(text, 0, len(text.rstrip(_SPACE))):
        group = match.lastindex
        assert group is not None
        token, position = match[group], match.start(group)
        value: TokenValue = token
        if group == 1:
            keyword = token.upper()
            if keyword in KEYWORDS and token.isascii():
                kind = keyword
            else:
                kind = NAME
                if not token.isascii():
                    _check_first_letter(text, token, position)
        elif group == 2:
            kind = token
        elif group == 3:
            kind, value = STRING, token[1:-1].replace("''", "'")
        elif group == 4:
            kind, value = FLOAT, _float(text, token, position)
        elif group == 5:
            kind, value = INTEGER, _integer(text, token, position)
        elif group == 6:
            kind, value = NAME, _read_quoted_name(text, token, position)
        else:
            raise _make_unexpected(text, token, position)
        kinds.append(kind)
        values.append(value)
        positions.append(position)
        if len(kinds) > tokens_max:
            raise FilterLimitError(f"a filter has at most {tokens_max} words and signs", text, position)
    kinds.append(END)
    values.append("")
    positions.append(len(text))
    return Tokens(kinds, values, positions)


def is_plain_name(name: str) -> bool:
    """Say whether a name can be written without double quotes."""
    return (
        _PLAIN_NAME.fullmatch(name) is not None
        and (name[0] in "_$" or name[0].isalpha())
        and not (name.isascii() and name.upper() in KEYWORDS)
    )


def _check_text(text: str, limits: FilterLimits) -> None:
    if len(text) > limits.length_max:
        raise FilterLimitError(
            f"a filter has at most {limits.length_max} characters; this one has {len(text)}", text, limits.length_max
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise FilterSyntaxError("half of a surrogate pair is not a character", text, error.start) from None


def _check_first_letter(text: str, name: str, position: int) -> None:
    r"""Refuse the numerals, such as a superscript two, that `\w` takes for letters."""
    if not (name[0] in "_$" or name[0].isalpha()):
        raise FilterSyntaxError(f"a name starts with a letter, _ or $, not with {name[0]!r}", text, position)


def _read_quoted_name(text: str, token: str, position: int) -> str:
    name = token[1:-1].replace('""', '"')
    if not name:
        raise FilterSyntaxError("a quoted name cannot be empty", text, position)
    return name


def _float(text: str, token: str, position: int) -> float:
    number = float(token.rstrip("dDfF"))
    if math.isinf(number):
        raise FilterSyntaxError("the number is too large for a double", text, position)
    return number


def _integer(text: str, token: str, position: int) -> int:
    digits = token.rstrip("lL")
    if digits == "0":
        return 0
    if digits[0] != "0":
        number = int(digits) if len(digits) < 20 else INT64_MAX + 2
    elif digits[1] in "xX":
        significant = digits[2:].lstrip("0")
        number = int(significant or "0", 16) if len(significant) <= 16 else INT64_MAX + 2
    else:
        number = _octal(text, digits, position)
    if number > INT64_MAX + 1:
        raise FilterSyntaxError("the integer does not fit in 64 bits", text, position)
    return number


def _octal(text: str, digits: str, position: int) -> int:
    if "8" in digits or "9" in digits:
        raise FilterSyntaxError("an integer that starts with 0 is octal, so it has no digit 8 or 9", text, position)
    significant = digits.lstrip("0")
    return int(significant or "0", 8) if len(significant) <= 22 else INT64_MAX + 2


def _make_unexpected(text: str, character: str, position: int) -> FilterSyntaxError:
    following = _WORD.match(text, position)
    word = following[0] if following else ""
    if len(word) > 1 or (word and word != "."):
        shown = word if len(word) <= 30 else word[:30] + "..."
        return FilterSyntaxError(f"{shown!r} is neither a number nor a name; a name cannot start with a digit", text, position)
    if character in _UNCLOSED:
        return FilterSyntaxError(_UNCLOSED[character], text, position)
    hint = f": {_HINTS[character]}" if character in _HINTS else ""
    return FilterSyntaxError(f"unexpected {character!r}{hint}", text, position)
