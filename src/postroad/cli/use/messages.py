"""Messages as JSON lines: what `postroad publish` reads and `postroad subscribe` writes.

One object per line: `{"attributes": {"symbol": "IBM", "price": 101.5}, "payload": "text"}`. Bytes that are not text are in
base64 under `payload_base64`; a bytes attribute is an object `{"base64": "..."}`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from postroad.client.subscription import Message
from postroad.errors import InvalidValueError
from postroad.types import AttributeValue


class Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    attributes: dict[str, Any] = {}
    payload: str | None = None
    payload_base64: str | None = None
    # written (numbers beyond 2^53 as strings), and ignored when read, so that what one command writes the other reads
    id: str | None = None
    tick: str | int | None = None
    pubend: str | None = None


def read_line(text: bytes, number: int) -> tuple[dict[str, AttributeValue], bytes]:
    """Return the attributes and the payload of a line; errors name the line."""
    try:
        line = msgspec.json.decode(text, type=Line)
        attributes = {name: _attribute(name, value) for name, value in line.attributes.items()}
        if line.payload_base64 is not None:
            return attributes, base64.b64decode(line.payload_base64, validate=True)
    except (msgspec.MsgspecError, binascii.Error, InvalidValueError) as error:
        raise InvalidValueError(f"line {number}: {error}") from error
    return attributes, (line.payload or "").encode()


def _attribute(name: str, value: Any) -> AttributeValue:
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, bool | int | float | str):
        return value
    raise InvalidValueError(f"attribute {name!r} must be a boolean, number or string, not {type(value).__name__}")


def write_line(message: Message) -> bytes:
    """Return a message as one line, its end included."""
    attributes = {
        name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
        for name, value in message.attributes.items()
    }
    line = Line(attributes, id=str(message.id), tick=str(message.tick), pubend=f"{message.pubend:x}")
    try:
        line.payload = message.payload.decode()
    except UnicodeDecodeError:
        line.payload_base64 = base64.b64encode(message.payload).decode()
    return msgspec.json.encode(line) + b"\n"
