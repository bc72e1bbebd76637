"""The protocol page, from the packet registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import inspect as types

from postroad.wire import framing, packets
from postroad.wire.packets.session import PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST
from postroad.wire.registry import RANGES, REGISTRY, Exchange, MethodRange, Packet, PacketSpec

HEAD: Final = f"""# Protocol

One TCP port carries everything: queues, publish/subscribe, broker links, tracking, the console. This page is generated from
the packet registry (`postroad.wire.registry`).

## Frames

```
 0        4        6           10
 +--------+--------+-----------+------------------+
 | length | method | packet id | payload ...      |
 |  u32   |  u16   |    u32    | length - 10 bytes|
 +--------+--------+-----------+------------------+
```

- Numbers of the header are big-endian. `length` counts the whole frame, header included.
- The largest frame is {framing.FRAME_BYTES_MAX:,} bytes by default (`frame_bytes_max` in Hello and Welcome says what the
  sender accepts), and {framing.FRAME_BYTES_MAX_UNIDENTIFIED:,} bytes before the connection is identified. A longer one is
  refused when its header is read.
- The payload is a MessagePack array of the packet's fields, in the order given below. Fields with a default may be left out
  at the end; a decoder ignores fields beyond those it knows.
- Packets marked *with body* carry Arrow columns behind their fields:
  `header length u32 | MessagePack array | zeros up to a multiple of 8 | body`. The body is an Arrow IPC stream of one schema
  and one record batch: columns `tick` (uint64), `id` (16 bytes), `payload` (binary), then `@name` for each attribute, sorted by
  name, of type bool, int64, float64, utf8 or binary. Compressed buffers, dictionaries, other types, custom metadata, other
  byte orders and metadata versions before 5 are refused.

## Rules

- A request has an odd method id, its response the next one. A request without a response of its own is answered by Success.
  Any request may be answered by Error instead. Answers repeat the packet id of the request; the requester chooses it.
- One-way packets get no answer. Clients send odd ones, brokers send clients even ones; where both sides may send a packet,
  its id is odd.
- Success (0x0003) and Error (0x0005) are the exceptions: odd, and sent by brokers. They keep the ids the Telesto report gives
  them, and as answers to every request they could not follow one of them.
- Error with packet id 0 is about the connection, which is then closed.
- A packet travels only in its directions, and before identification (Hello, RegisterClient or IdentifyClient answered) only
  where it says so.
- A malformed frame ends the connection: after it the place in the stream is not known.
- A sound frame with a malformed payload, from the wrong side, or with an unknown method is answered by Error. Then the connection
  is closed; where a service answers (queues), it goes on.
- Between brokers a packet with an unknown method is left out, and the link stays: a neighbour may run a newer release.

## Versions

This is version {PROTOCOL_VERSION}; the oldest spoken is {PROTOCOL_VERSION_OLDEST}. Hello states the oldest and the newest version
its sender speaks. The receiver answers with the newest version both speak, or with Error 307 and closes. Within a version fields
are only appended, with a default; abilities that a side may lack are `features` of Hello and Welcome, and each side uses only
those both named. Between brokers a new packet needs neither if the overlay works without it, since older brokers leave it out. A
unicast packet then ends at the first broker that does not know it. Any other change is a new version.
"""


def protocol_page() -> str:
    """Write the page: frames, rules, versions, ranges, then every packet."""
    assert packets.__all__, "importing the packets fills the registry"
    parts = [HEAD, _ranges()]
    for block in RANGES:
        specs = [spec for spec in REGISTRY if block.lo <= spec.method <= block.hi]
        if specs:
            parts.append(f"## {_title(block)}\n")
            parts += [_packet(spec) for spec in specs]
    parts.append(_structures())
    return "\n".join(parts)


def _ranges() -> str:
    rows = [f"| 0x{block.lo:04x}-0x{block.hi:04x} | {block.purpose} | {_count(block)} |" for block in RANGES]
    return "## Method ids\n\n| ids | purpose | packets |\n|---|---|---|\n" + "\n".join(rows) + "\n\nOther ids are unassigned.\n"


def _count(block: MethodRange) -> int:
    return sum(block.lo <= spec.method <= block.hi for spec in REGISTRY)


def _title(block: MethodRange) -> str:
    return f"{block.purpose[0].upper()}{block.purpose[1:]}"


def _packet(spec: PacketSpec) -> str:
    facts = [spec.exchange.value, spec.direction.describe()]
    answer = REGISTRY.answer_to(spec)
    if answer is not None:
        facts.append(f"answered by {answer.name}")
    if spec.exchange is Exchange.RESPONSE and spec.method - 1 in REGISTRY.by_method and not spec.method & 1:
        facts.append(f"answers {REGISTRY.by_method[spec.method - 1].name}")
    facts.append("needs identification" if spec.needs_identification else "allowed before identification")
    if spec.carries_body:
        facts.append("with body")
    text = f"### 0x{spec.method:04x} {spec.name}\n\n{spec.description}\n\n*{'; '.join(facts)}*\n"
    return text + _fields(spec.type)


def _fields(struct: type[msgspec.Struct]) -> str:
    fields = msgspec.structs.fields(struct)
    if not fields:
        return "\nNo fields.\n"
    rows = [f"| `{field.name}` | {describe(types.type_info(field.type))}{_default(field)} |" for field in fields]
    return "\n| field | type |\n|---|---|\n" + "\n".join(rows) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    shown = {"()": "empty", "''": "empty", "{}": "empty"}.get(repr(default), repr(default))
    return f"; default {shown}"


def describe(kind: types.Type) -> str:
    """Say in words what a field may hold."""
    match kind:
        case types.IntType():
            return f"integer {_bound(kind.ge, 'any')} to {_bound(kind.le if kind.lt is None else kind.lt - 1, '2^64-1')}"
        case types.StrType():
            return f"text, {_lengths(kind.min_length, kind.max_length)} characters"
        case types.BytesType():
            return f"bytes, {_lengths(kind.min_length, kind.max_length)}"
        case types.EnumType():
            return ", ".join(f"{member.value} = {member.name.lower().replace('_', ' ')}" for member in kind.cls)
        case types.VarTupleType() | types.ListType():
            return f"list of {_lengths(kind.min_length, kind.max_length)}: {describe(kind.item_type)}"
        case types.TupleType():
            return "[" + ", ".join(describe(each) for each in kind.item_types) + "]"
        case types.DictType():
            most = _lengths(kind.min_length, kind.max_length)
            return f"map of {most}: {describe(kind.key_type)} to {describe(kind.value_type)}"
        case types.UnionType():
            return " or ".join(describe(each) for each in kind.types)
        case types.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case _:
            return {"NoneType": "nil", "BoolType": "boolean", "FloatType": "float", "AnyType": "any value"}[type(kind).__name__]


def _bound(value: float | None, missing: str) -> str:
    named = {(1 << 63) - 1: "2^63-1", -(1 << 63): "-2^63", (1 << 32) - 1: "2^32-1"}
    return missing if value is None else named.get(int(value), f"{int(value):,}")


def _lengths(least: int | None, most: int | None) -> str:
    if least == most and least is not None:
        return f"{least:,}"
    return f"{least or 0:,} to {_bound(most, 'any')}"


def _structures() -> str:
    found: dict[str, type[msgspec.Struct]] = {}
    for spec in REGISTRY:
        for struct in _nested(types.type_info(spec.type)):
            if not issubclass(struct, Packet):
                found[struct.__name__] = struct
    parts = ["## Structures\n\nArrays of fields, like packets.\n"]
    for name, struct in sorted(found.items()):
        parts.append(f"### {name}\n\n{(struct.__doc__ or '').strip().splitlines()[0]}\n{_tag(struct)}{_fields(struct)}")
    return "\n".join(parts)


def _tag(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    return "" if tag is None else f"\nThe text `{tag}` stands first in the array, before the fields.\n"


def _nested(kind: types.Type) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs a type is made of."""
    match kind:
        case types.StructType():
            yield kind.cls
            for field in kind.fields:
                yield from _nested(field.type)
        case types.VarTupleType() | types.ListType():
            yield from _nested(kind.item_type)
        case types.TupleType():
            for each in kind.item_types:
                yield from _nested(each)
        case types.UnionType():
            for each in kind.types:
                yield from _nested(each)
        case types.DictType():
            yield from _nested(kind.value_type)
        case _:
            return
