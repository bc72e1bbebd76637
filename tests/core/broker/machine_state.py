"""A broker's state as plain text, to be printed and compared."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec
import numpy as np

from postroad.core.filters.filter import Filter
from postroad.core.filters.index.filter_index import FilterIndex

PLAIN: Final = (str, bytes, int, float, bool, type(None), type, Enum, np.generic)
CODE: Final = (types.FunctionType, types.MethodType, types.BuiltinMethodType, types.GeneratorType, functools.partial)


def describe(state: object) -> list[str]:
    """Return one line for each value that can be reached, with its path; an object that comes again has its first path."""
    return [f"{path} = {text}" for path, text in _lines(state, "broker", {})]


def _lines(value: Any, path: str, known: dict[int, tuple[str, object]]) -> Iterator[tuple[str, str]]:
    if isinstance(value, PLAIN):
        yield path, repr(value)
    elif isinstance(value, Filter):
        yield path, f"filter {value}"  # what it compiles to is a cache
    elif isinstance(value, FilterIndex):
        yield path, f"index of {len(value)} filters"  # likewise
    elif isinstance(value, CODE):
        yield path, f"code {value}"
    elif id(value) in known:
        yield path, f"the same as {known[id(value)][0]}"
    else:
        known[id(value)] = (path, value)
        yield path, type(value).__name__
        for name, part in _parts(value):
            yield from _lines(part, path + name, known)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, np.ndarray):
        yield ".values", str(value.tolist())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"[{_key(key)}]", part
    elif isinstance(value, list | tuple | deque):
        for place, part in enumerate(value):
            yield f"[{place}]", part
    elif isinstance(value, set | frozenset):
        yield ".members", str(sorted(map(_key, value)))
    else:
        for name in _fields(value):
            yield f".{name}", getattr(value, name)


def _key(key: Any) -> str:
    return str(key) if isinstance(key, (*PLAIN, Filter)) else f"{type(key).__name__} {[_key(part) for _, part in _parts(key)]}"


def _fields(value: Any) -> list[str]:
    names = list(vars(value)) if hasattr(value, "__dict__") else []
    if isinstance(value, msgspec.Struct):
        names += value.__struct_fields__
    else:
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
    return [name for name in dict.fromkeys(names) if not name.startswith("__") and hasattr(value, name)]
