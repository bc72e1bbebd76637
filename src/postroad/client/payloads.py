"""Payloads as applications give and take them: bytes, text, or a value that travels as JSON.

A value given as `json=` is encoded by msgspec, so dataclasses, structs, datetimes and UUIDs work. The message then has the
reserved attribute `content_type` with the value `application/json`, which filters and readers may use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar, overload

import msgspec

from postroad.core.batch.message import CONTENT_TYPE, decode_json
from postroad.errors import InvalidValueError
from postroad.types import AttributeValue

JsonT = TypeVar("JsonT")

JSON_TYPE: Final = "application/json"


class _Missing:
    """The type of `MISSING`: None is a value that JSON has."""

    def __repr__(self) -> str:
        return "<nothing>"


MISSING: Final = _Missing()


class JsonPayload:
    """What has a payload that may be JSON."""

    __slots__ = ()

    @property
    def payload(self) -> bytes:
        raise NotImplementedError

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, type: type[JsonT]) -> JsonT: ...

    def json(self, type: Any = Any) -> Any:  # noqa: A002  # as msgspec calls it
        """Return the payload read as JSON; with a type, checked and converted to it. Raise `PayloadError` when it is not that."""
        return decode_json(self.payload, type)


def encode_json(value: object) -> bytes:
    """Return a value as JSON, or raise `InvalidValueError`."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidValueError(f"a value of type {type(value).__name__} cannot be written as JSON: {error}") from error


def with_json(attributes: Mapping[str, AttributeValue], payload: bytes | str, value: object) -> tuple[dict[str, Any], bytes]:
    """Return the attributes and the payload of a message whose payload is given as `json=`."""
    if payload:
        raise InvalidValueError("give either a payload or json=, not both")
    stated = attributes.get(CONTENT_TYPE, JSON_TYPE)
    if stated != JSON_TYPE:
        raise InvalidValueError(f"the attribute {CONTENT_TYPE!r} is reserved: with json= it is {JSON_TYPE!r}, not {stated!r}")
    return {**attributes, CONTENT_TYPE: JSON_TYPE}, encode_json(value)
