"""Packets with rows as frames, and frames back as packets with rows.

Most rows travel as columns (`postroad.wire.batches`). For few of them an Arrow message is mostly head: eight hundred bytes for a
message of a hundred, and ten times the work. So a `Deliver` of few rows leaves as a `DeliverRows`, to those who know it.

What comes is hostile until checked, here as there: what passes is a `Batch` with all its invariants, all else is a `BatchError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, TypeAlias, cast

import msgspec

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import FEW_ROWS, FewRows
from postroad.core.batch.schema import DEFAULT_LIMITS, BatchLimits, check_message, check_name
from postroad.core.protocol.packets import Deliver, DeliverRows
from postroad.errors import BatchError, BatchLimitError, InvalidValueError
from postroad.types import AttributeValue, Tick
from postroad.wire.batches import BatchDecoder, encode_batch
from postroad.wire.codec import encode
from postroad.wire.framing import FRAME_BYTES_MAX
from postroad.wire.packets.overlay import ASCENDING, CARRIES_ROWS

ROWS: Final = "rows"
"""The feature of a client that takes `DeliverRows`."""

_Lists: TypeAlias = dict[str, list[AttributeValue | None]]

_encoder: Final = msgspec.msgpack.Encoder()


def encode_with_rows(
    packet: msgspec.Struct, packet_id: int, batch: Batch | None, *, few: bool, max_bytes: int = FRAME_BYTES_MAX
) -> list[bytes | memoryview]:
    """Return the buffers of the frame of a packet and the batch that goes with it. `few`: the peer takes `DeliverRows`."""
    kind = type(packet)
    if kind not in CARRIES_ROWS:
        return encode(packet, packet_id, max_bytes=max_bytes)
    if few and kind is Deliver and batch is not None and len(batch) <= FEW_ROWS:
        rows = _few_rows(batch)
        if rows is not None:
            assert isinstance(packet, Deliver)
            values = DeliverRows(packet.handle, packet.pubend, packet.lo, packet.hi, cast("FewRows", msgspec.Raw(rows)))
            return encode(values, packet_id, max_bytes=max_bytes)
    return encode(packet, packet_id, () if batch is None else encode_batch(batch), max_bytes=max_bytes)


def _few_rows(batch: Batch) -> bytes | None:
    """Return the rows as an encoded `FewRows`, or None when they have more attributes than one may have."""
    if batch.encoded_values is not None:
        return batch.encoded_values
    ticks, ids, payloads, values = batch.values()
    attributes: _Lists = {}
    binary: _Lists = {}
    for name, kind in zip(batch.layout.names, batch.layout.kinds, strict=True):
        column = values[name]
        if None not in column or any(value is not None for value in column):
            (binary if kind == "binary" else attributes)[name] = column
    if len(attributes) + len(binary) > DEFAULT_LIMITS.attributes:
        return None
    encoded = _encoder.encode((ticks, ids, payloads, attributes, binary) if binary else (ticks, ids, payloads, attributes))
    if batch.is_view:  # others are kept by the cache, and should not be kept twice
        batch.encoded_values = encoded
    return encoded


class RowsDecoder:
    """Decodes the rows that one peer sends."""

    __slots__ = ("_batches", "limits")

    def __init__(self, limits: BatchLimits = DEFAULT_LIMITS) -> None:
        self.limits: Final = limits
        self._batches: Final = BatchDecoder(limits)

    def rows_of(self, packet: msgspec.Struct, body: memoryview | None, size: int) -> Batch | None:
        """Return the rows of a packet with this body and in all `size` bytes, or raise `BatchError`; None when it has no rows."""
        if type(packet) is DeliverRows:
            return self._few(packet.rows, size)
        return self._batches.decode(body, ascending=type(packet) in ASCENDING) if body else None

    def _few(self, rows: FewRows, size: int) -> Batch:
        """Check what the types of the fields do not say."""
        ticks, ids, payloads, attributes = rows.ticks, rows.ids, rows.payloads, cast("_Lists", rows.attributes)
        count = len(ticks)
        if len(ids) != count or len(payloads) != count:
            raise BatchError(f"{count} ticks, {len(ids)} ids and {len(payloads)} payloads are no rows")
        if count > 1 and any(first >= second for first, second in pairwise(ticks)):
            raise BatchError("ticks must strictly ascend")
        if rows.binary:
            if not attributes.keys().isdisjoint(rows.binary):
                raise BatchError("an attribute has one type")
            attributes = {**attributes, **cast("_Lists", rows.binary)}
        for name, values in attributes.items():
            self._check_values(name, values, count)
        if size > self.limits.value_bytes or len(attributes) > self.limits.attributes:
            self._check_messages(attributes, payloads)
        return Batch.of_values(cast("list[Tick]", ticks), ids, payloads, attributes, size)

    def _check_messages(self, attributes: _Lists, payloads: Iterable[bytes]) -> None:
        """Check message by message what a small frame cannot break: sizes of values, and how many a message has."""
        for row, payload in enumerate(payloads):
            present = {name: values[row] for name, values in attributes.items() if values[row] is not None}
            try:
                check_message(present, payload, self.limits)
            except InvalidValueError as error:
                raise BatchError(str(error)) from error

    def _check_values(self, name: str, values: list[AttributeValue | None], count: int) -> None:
        try:
            name_bytes = check_name(name)
        except InvalidValueError as error:
            raise BatchError(str(error)) from error
        if name_bytes > self.limits.name_bytes:
            raise BatchLimitError(f"an attribute name of {name_bytes:,} bytes", "name_bytes", self.limits.name_bytes)
        kinds = set(map(type, values))
        kinds.discard(type(None))
        if len(values) != count or len(kinds) != 1:
            raise BatchError(f"attribute {name[:80]!r} has {len(values)} values of {len(kinds)} types in {count} rows")
