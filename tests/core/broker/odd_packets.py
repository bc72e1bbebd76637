"""Packets that a peer may send and never should: every field has a value its type allows, and most have an odd one.

The values of the fields come from their types, so a new packet is covered as soon as it is registered. Ids, ticks and names are
often those of the overlay that is attacked, because a packet about nothing is soon left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar, cast

import msgspec
import numpy as np
from msgspec import inspect as types

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.protocol.packets import Packet
from postroad.wire.packets.overlay import ASCENDING, CARRIES_ROWS
from postroad.wire.registry import REGISTRY, Direction

PacketT = TypeVar("PacketT", bound=msgspec.Struct)
ODD_INTEGERS: Final = (0, 1, 2, 63, 64, 255, 256, 65_535, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32)
HUGE_INTEGERS: Final = ((1 << 47) - 1, (1 << 48) - 1, 1 << 48, (1 << 62) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
ODD_FLOATS: Final = (0.0, -0.0, 1e-308, 0.5, 1.0, 2.0, 1e9, 1e308, float("inf"), float("nan"), -1.0)
ODD_TEXTS: Final = ("", "\0", "x", "a/b", "../..", "é\u202e\U0001f4a9", "x" * 255, "*", "%", "'", "NULL")
FILTERS: Final = (
    "",
    "n > 1",
    "n > 1 AND n < 0",
    "n IN (1, 2, 3)",
    "s LIKE '%a%_b%'",
    "NOT (n = 1 OR n IS NULL)",
    "n = 1 OR s = 'x'",
    "n = 9223372036854775807 + 1",
    "n / 0 > 1",
    "n >",
    "'",
    "(" * 200,
    "TRUE",
    "FALSE",
)


def packets_from(direction: Direction) -> list[type[Packet]]:
    """Return the packets of the overlay that a peer may send this way, in order of their ids."""
    return [spec.type for spec in REGISTRY if direction in spec.direction and issubclass(spec.type, Packet)]


@dataclass
class OddPackets:
    """Draws packets. `known` has values that mean something where the packets go, by the name of the field."""

    chance: Random
    integers: Sequence[int]
    names: Sequence[str]
    known: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def draw(self, kind: type[PacketT]) -> tuple[PacketT, Batch | None]:
        """Return a packet as the decoder would, and its rows if it carries some."""
        info = types.type_info(kind)
        assert isinstance(info, types.StructType)
        values = [self._field(each) for each in info.fields]
        packet = cast("PacketT", REGISTRY.by_type[kind].decoder.decode(msgspec.msgpack.encode(values)))
        return packet, self._rows(packet) if kind in CARRIES_ROWS and self.chance.random() < 0.8 else None

    def _field(self, field_: types.Field) -> Any:
        sensible = self.known.get(field_.name)
        if sensible and self.chance.random() < 0.7:
            return self.chance.choice(sensible)
        return self._value(field_.type, field_.name)

    def _value(self, kind: types.Type, name: str) -> Any:
        match kind:
            case types.IntType():
                return self._integer(kind)
            case types.FloatType():
                numbers = [x for x in ODD_FLOATS if (kind.ge is None or x >= kind.ge) and (kind.le is None or x <= kind.le)]
                return self.chance.choice(numbers)
            case types.StrType():
                texts = FILTERS if "filter" in name or name in {"add", "remove"} else (*self.names, *ODD_TEXTS)
                least, most = kind.min_length or 0, kind.max_length or 1 << 16
                return self.chance.choice([text for text in texts if least <= len(text) <= most])
            case types.BytesType():
                least, most = kind.min_length or 0, min(kind.max_length or 64, 64)
                return self.chance.randbytes(self.chance.randint(least, most))
            case types.BoolType():
                return self.chance.random() < 0.5
            case types.NoneType():
                return None
            case types.UnionType():
                return self._value(self.chance.choice(kind.types), name)
            case types.ListType() | types.VarTupleType():
                least = kind.min_length or 0
                return [self._value(kind.item_type, name) for _ in range(max(least, self._length(kind.max_length)))]
            case types.TupleType():
                return [self._value(each, name) for each in kind.item_types]
            case types.DictType():
                size = self._length(kind.max_length)
                return {self._value(kind.key_type, name): self._value(kind.value_type, name) for _ in range(size)}
            case types.StructType():
                return ([] if kind.tag is None else [kind.tag]) + [self._field(each) for each in kind.fields]
            case types.EnumType():
                return self.chance.choice(list(kind.cls)).value
            case _:
                raise NotImplementedError(kind)

    def _integer(self, kind: types.IntType) -> int:
        least, most = (
            int(kind.ge or 0),
            int(kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else (1 << 64) - 1),
        )
        pool = self.chance.choice((self.integers, self.integers, ODD_INTEGERS, HUGE_INTEGERS))
        value = self.chance.choice(pool) + self.chance.choice((0, 0, 0, 1, -1))
        return min(max(value, least), most)

    def _length(self, most: int | None) -> int:
        return min(self.chance.choice((0, 1, 1, 2, 3, 8)), 1 << 16 if most is None else most)

    def _rows(self, packet: msgspec.Struct) -> Batch:
        """Return rows, inside the range of the packet if it has one, mostly."""
        count = self.chance.choice((1, 1, 2, 5))
        lo, hi = getattr(packet, "lo", 0), getattr(packet, "hi", 0)
        ticks = None
        if type(packet) in ASCENDING:
            first = lo + 1 if lo < hi and self.chance.random() < 0.9 else self._integer(types.IntType(ge=0))
            ticks = np.array([min(first + n, (1 << 64) - 1 - count + n) for n in range(count)], dtype=np.uint64)
        rows = [(self._message_id(n), self._attributes(), self.chance.choice((b"", b"odd"))) for n in range(count)]
        return build_batches(rows, ticks)[0] if ticks is None else build_batches([(i, {"n": 2}, b) for i, _, b in rows], ticks)[0]

    def _message_id(self, number: int) -> bytes:
        return self.chance.randbytes(8) + (self._integer(types.IntType(ge=0)) + number & (1 << 64) - 1).to_bytes(8, "big")

    def _attributes(self) -> dict[str, Any]:
        return self.chance.choice(({}, {"n": 2}, {"n": -(1 << 63)}, {"s": "ab"}, {"n": 1.5, "b": b"\0"}))
