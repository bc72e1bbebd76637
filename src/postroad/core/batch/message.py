"""A message as users see it: a view of one row of a batch.

A batch of a thousand rows should not cost a thousand conversions of columns nobody reads. `RowColumns` turns a column into a
Python list the first time any message of the batch asks for it, and all messages of the batch share that list; a `Message`
is two words, the shared columns and its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast, overload

import msgspec
import numpy as np
import pyarrow as pa

from postroad.core.batch.schema import ATTRIBUTE_PREFIX, ID, PAYLOAD, SYSTEM_COLUMNS, TICK
from postroad.errors import PayloadError
from postroad.types import MESSAGE_ID_BYTES, AttributeValue, MessageId, Tick

JsonT = TypeVar("JsonT")

CONTENT_TYPE: Final = "content_type"
"""The reserved attribute that says how the payload is encoded, where that is known."""

UNDECIDED: Final = Tick(0)
"""The tick of a message that no pubend has placed yet."""

_ID_DTYPE: Final = np.dtype((np.void, MESSAGE_ID_BYTES))


class RowColumns:
    """The columns of a batch as Python lists, each made when first asked for."""

    __slots__ = ("_attributes", "_columns", "_ids", "_payloads", "_ticks", "names")

    def __init__(self, columns: pa.RecordBatch) -> None:
        self._columns: pa.RecordBatch | None = columns
        self.names: tuple[str, ...] = tuple(name[len(ATTRIBUTE_PREFIX) :] for name in columns.schema.names[SYSTEM_COLUMNS:])
        self._ids: list[bytes] | None = None
        self._payloads: list[bytes] | None = None
        self._ticks: list[Tick] | None = None
        self._attributes: dict[str, list[AttributeValue | None]] = {}

    @classmethod
    def of_values(
        cls,
        ticks: list[Tick] | None,
        ids: list[bytes],
        payloads: list[bytes],
        attributes: Mapping[str, list[AttributeValue | None]],
        columns: pa.RecordBatch | None = None,
    ) -> RowColumns:
        """Make them of values that are known. Without `columns` they stand in no batch."""
        self = cls.__new__(cls)
        self._columns = columns
        self.names = tuple(sorted(attributes))
        self._ids, self._payloads, self._ticks = ids, payloads, ticks
        self._attributes = {name: attributes[name] for name in self.names}
        return self

    def ids(self) -> list[bytes]:
        if self._ids is None:
            self._ids = cast("list[bytes]", id_array(self._column(ID)).tolist())
        return self._ids

    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            self._payloads = cast("list[bytes]", self._column(PAYLOAD).to_pylist())
        return self._payloads

    def ticks(self) -> list[Tick]:
        if self._ticks is None:
            self._ticks = cast("list[Tick]", self._column(TICK).to_pylist())
        return self._ticks

    def attribute(self, name: str) -> list[AttributeValue | None] | None:
        """Return the values of an attribute, None where it is missing; None when no row has it."""
        values = self._attributes.get(name)
        if values is None and name in self.names:
            values = self._column(SYSTEM_COLUMNS + self.names.index(name)).to_pylist()
            self._attributes[name] = values
        return values

    def all_attributes(self) -> dict[str, list[AttributeValue | None]]:
        """Return the values of every attribute, by name in order."""
        if len(self._attributes) < len(self.names):
            self._attributes = {name: self.attribute(name) or [] for name in self.names}
        return self._attributes

    def _column(self, index: int) -> pa.Array[Any]:
        assert self._columns is not None, "values that stand in no batch are all there"
        return self._columns.column(index)


class Message:
    """One message: `id`, `attributes`, `payload` and its `tick` in the pubend's stream. Immutable; equal by content."""

    __slots__ = ("_attributes", "_columns", "_row")

    def __init__(self, columns: RowColumns, row: int) -> None:
        self._columns = columns
        self._row = row
        self._attributes: Mapping[str, AttributeValue] | None = None

    @classmethod
    def of(
        cls, message_id: MessageId, attributes: Mapping[str, AttributeValue], payload: bytes = b"", tick: Tick = UNDECIDED
    ) -> Message:
        """Make a message from its values (they are not checked against limits; publishing does that)."""
        values: dict[str, list[AttributeValue | None]] = {name: [value] for name, value in attributes.items()}
        return cls(RowColumns.of_values([tick], [bytes(message_id)], [payload], values), 0)

    @property
    def id(self) -> MessageId:
        """The id: the same message has the same id everywhere, for ever."""
        return MessageId.from_bytes(self._columns.ids()[self._row])

    @property
    def payload(self) -> bytes:
        """The payload, as bytes."""
        return self._columns.payloads()[self._row]

    @property
    def tick(self) -> Tick:
        """The place of the message in its stream."""
        return self._columns.ticks()[self._row]

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The attributes this message has, by name."""
        if self._attributes is None:
            row = self._row
            columns = self._columns.all_attributes()
            self._attributes = {name: value for name, values in columns.items() if (value := values[row]) is not None}
        return self._attributes

    @property
    def time(self) -> datetime:
        """When the message was published, by the clock of its broker."""
        return datetime.fromtimestamp(self.id.milliseconds / 1000, UTC)

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, type: type[JsonT]) -> JsonT: ...

    def json(self, type: Any = Any) -> Any:  # noqa: A002  # as msgspec calls it
        """Return the payload read as JSON; with a type, checked and converted to it. Raise `PayloadError` when it is not that."""
        return decode_json(self.payload, type)

    def __getitem__(self, name: str) -> AttributeValue:
        """Return one attribute; cheaper than `attributes[name]` when only a few are read."""
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    @overload
    def get(self, name: str) -> AttributeValue | None: ...

    @overload
    def get(self, name: str, default: AttributeValue) -> AttributeValue: ...

    def get(self, name: str, default: AttributeValue | None = None) -> AttributeValue | None:
        """Return an attribute, or the default where the message lacks it."""
        values = self._columns.attribute(name)
        if values is None:
            return default
        value = values[self._row]
        return default if value is None else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.id, self.tick, self.payload, self.attributes) == (other.id, other.tick, other.payload, other.attributes)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Message(id={self.id}, tick={self.tick}, attributes={dict(self.attributes)!r}, payload={len(self.payload)} bytes)"


def decode_json(payload: bytes, type: Any = Any) -> Any:  # noqa: A002  # as msgspec calls it
    """Read a payload as JSON, or raise `PayloadError`."""
    try:
        return msgspec.json.decode(payload, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"the payload is not the JSON that was asked for: {error}") from error


def id_array(column: pa.Array[Any]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """View the id column as a numpy array of 16-byte items, without a copy."""
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, _ID_DTYPE)
    return np.frombuffer(memoryview(data), _ID_DTYPE, count=len(column), offset=column.offset * MESSAGE_ID_BYTES)


def ids_of(joined: bytes) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """View ids that stand one after the other as the same."""
    return np.frombuffer(joined, _ID_DTYPE)
