r"""The eight messages of the seed's section 3.1, to the byte.

A message is a header (`NAME sender field ...`, separated by single spaces, ended by CR LF CR LF) and an optional body.
Names travel percent-encoded where they must: the bytes 0x00-0x20, 0x7F and `%` become `%` and two upper-case hexadecimal
digits; every other byte stands for itself, so ordinary names give the seed's bytes. Extension fields follow the seed's
fields and look like `@key=value`; unknown keys are skipped, and a message without any is what an old peer sends.

Every length is bounded before anything is copied; whatever is wrong raises `TopicsProtocolError` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import xxhash

from postroad.errors import InvalidValueError, TopicsProtocolError

END: Final = b"\r\n\r\n"
NAME_BYTES_MAX: Final = 16_384
BODY_BYTES_MAX: Final = 64 << 20
HEADER_BYTES_MAX: Final = 6 * NAME_BYTES_MAX + 65_536
EXTENSIONS_MAX: Final = 16
INTEGER_DIGITS_MAX: Final = 19
INTEGER_MAX: Final = (1 << 63) - 1  # what a database column holds
# A TRANSFER of one largest message, all of whose bytes need escaping, and its lines.
PAYLOAD_BYTES_MAX: Final = 2 * BODY_BYTES_MAX + (16 << 20)
ANNOUNCEMENT_BYTES_MAX: Final = 16 << 20  # the names in one PERIODIC, or in the answer to it
SERVERS_BYTES_MAX: Final = 32_768  # one list of servers with their addresses, in an extension field
NO_MESSAGE_ID: Final = b"-1"

_SPECIAL: Final = re.compile(rb"[\x00-\x20\x7f%]")
_ESCAPE: Final = re.compile(rb"%([0-9A-F]{2})")
_DIGITS: Final = re.compile(rb"[0-9]{1,%d}\Z" % INTEGER_DIGITS_MAX)

Extensions = Mapping[str, bytes]


def check_name(name: bytes, what: str) -> bytes:
    """Refuse a name no message can carry, in the words of the person who typed it."""
    if not name:
        raise InvalidValueError(f"the {what} is empty; it needs at least one byte")
    if len(name) > NAME_BYTES_MAX:
        raise InvalidValueError(f"the {what} has {len(name)} bytes; at most {NAME_BYTES_MAX} are allowed")
    return name


def encode_name(name: bytes) -> bytes:
    return _SPECIAL.sub(lambda match: b"%%%02X" % match[0][0], name)


def decode_name(text: bytes) -> bytes:
    name = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode("ascii")), text)
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise TopicsProtocolError(f"a name of {len(name)} bytes; 1 to {NAME_BYTES_MAX} are allowed")
    return name


def message_id(publisher: bytes, counter: int) -> bytes:
    return b"%d:%s" % (counter, publisher)


def parse_message_id(text: bytes) -> tuple[bytes, int] | None:
    """Give publisher and counter of one of our ids; None for an id some other server made."""
    digits, colon, publisher = text.partition(b":")
    if not colon or not publisher or not _DIGITS.match(digits) or int(digits) > INTEGER_MAX:
        return None
    return publisher, int(digits)


@dataclass(frozen=True, slots=True)
class Subscribe:
    sender: bytes
    topic: bytes
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    sender: bytes
    topic: bytes
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Get:
    sender: bytes
    topic: bytes
    last_message_id: bytes
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Put:
    sender: bytes
    topic: bytes
    counter: int
    body: bytes
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Periodic:
    sender: bytes
    topics: tuple[bytes, ...]
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Merge:
    sender: bytes
    topic: bytes
    address: bytes
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Transfer:
    sender: bytes
    topic: bytes
    data: bytes
    extensions: Extensions = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Status:
    """`status` is `OK` or the word of an error; `message_id` only in the answer to a `get`."""

    sender: bytes
    status: bytes
    message_id: bytes | None = None
    body: bytes = b""
    extensions: Extensions = field(default_factory=dict, kw_only=True)

    @property
    def ok(self) -> bool:
        return self.status == OK


Message = Subscribe | Unsubscribe | Get | Put | Periodic | Merge | Transfer | Status
ClientRequest = Subscribe | Unsubscribe | Get | Put

# The words of STATUS. A person reads the body; a program reads the word.
OK: Final = b"OK"
NO_MESSAGE: Final = b"NO_MESSAGE"
NOT_SUBSCRIBED: Final = b"NOT_SUBSCRIBED"
STALE: Final = b"STALE"
REFUSED: Final = b"REFUSED"
BAD_REQUEST: Final = b"BAD_REQUEST"
NOT_OWNER: Final = b"NOT_OWNER"
OTHER_COPY: Final = b"OTHER_COPY"
HOME: Final = b"HOME"
MOVING: Final = b"MOVING"
RESTART: Final = b"RESTART"
UNAVAILABLE: Final = b"UNAVAILABLE"
STORAGE: Final = b"STORAGE"
BUSY: Final = b"BUSY"
CLOCK: Final = b"CLOCK"
DENIED: Final = b"DENIED"
RETRIABLE: Final = frozenset({HOME, NOT_OWNER, OTHER_COPY, MOVING, RESTART, UNAVAILABLE, STORAGE, BUSY, CLOCK})

# name -> (how many fields follow it, how many of them may be missing)
_ARITY: Final[dict[bytes, tuple[int, int]]] = {
    b"SUBSCRIBE": (2, 0),
    b"UNSUBSCRIBE": (2, 0),
    b"GET": (3, 0),
    b"PUT": (3, 0),
    b"PERIODIC": (1, 0),
    b"MERGE": (3, 0),
    b"TRANSFER": (2, 0),
    b"STATUS": (3, 1),
}


@dataclass(frozen=True, slots=True)
class Header:
    """The parsed header of any message; the body begins at `body_start` of the payload."""

    name: bytes
    fields: tuple[bytes, ...]
    extensions: Extensions
    body_start: int


def parse_header(payload: bytes) -> Header:
    end = payload.find(END, 0, HEADER_BYTES_MAX + len(END))
    if end < 0:
        raise TopicsProtocolError(f"no CR LF CR LF within the first {HEADER_BYTES_MAX} bytes")
    words = payload[:end].split(b" ")
    if len(words) > 1 and not words[-1]:
        words.pop()  # an old peer may put a space before the CR LF CR LF
    if words[0] not in _ARITY:
        raise TopicsProtocolError(f"unknown message {words[0][:20]!r}")
    arity, optional = _ARITY[words[0]]
    count = arity
    if optional and (len(words) <= arity or words[arity].startswith(b"@")):
        count = arity - optional
    if len(words) < count + 1 or not all(words):
        raise TopicsProtocolError(f"{words[0].decode()} needs {count} fields separated by single spaces")
    return Header(words[0], tuple(words[1 : count + 1]), _extensions(words[count + 1 :]), end + len(END))


def _extensions(words: list[bytes]) -> Extensions:
    if not words:
        return {}
    if len(words) > EXTENSIONS_MAX:
        raise TopicsProtocolError(f"more than {EXTENSIONS_MAX} extension fields")
    found: dict[str, bytes] = {}
    for word in words:
        key, equals, value = word.partition(b"=")
        if not key.startswith(b"@") or not equals or not key[1:].isalnum():
            raise TopicsProtocolError(f"{word[:20]!r} is not an extension field (@key=value)")
        found[key[1:].decode("ascii")] = value
    return found


def parse(payload: bytes) -> Message:
    """Read one message. Raises `TopicsProtocolError`, whatever the bytes."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TopicsProtocolError(f"a message of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are allowed")
    header = parse_header(payload)
    fields, extensions = header.fields, header.extensions
    sender = decode_name(fields[0])
    match header.name:
        case b"SUBSCRIBE":
            return Subscribe(sender, decode_name(fields[1]), extensions=extensions)
        case b"UNSUBSCRIBE":
            return Unsubscribe(sender, decode_name(fields[1]), extensions=extensions)
        case b"GET":
            return Get(sender, decode_name(fields[1]), decode_name(fields[2]), extensions=extensions)
        case b"PUT":
            return Put(sender, decode_name(fields[1]), integer(fields[2]), _body(payload, header), extensions=extensions)
        case b"PERIODIC":
            return Periodic(sender, parse_announcement(payload[header.body_start :]), extensions=extensions)
        case b"MERGE":
            return Merge(sender, decode_name(fields[1]), decode_name(fields[2]), extensions=extensions)
        case b"TRANSFER":
            return Transfer(sender, decode_name(fields[1]), payload[header.body_start :], extensions=extensions)
        case _:
            found = decode_name(fields[2]) if len(fields) == 3 else None
            return Status(sender, fields[1], found, _body(payload, header), extensions=extensions)


def parse_status(payload: bytes) -> Status:
    """Read an answer."""
    status = parse(payload)
    if not isinstance(status, Status):
        raise TopicsProtocolError("an answer must be a STATUS")
    return status


def _body(payload: bytes, header: Header) -> bytes:
    if len(payload) - header.body_start > BODY_BYTES_MAX:
        raise TopicsProtocolError(f"a body of {len(payload) - header.body_start} bytes; at most {BODY_BYTES_MAX} are allowed")
    return payload[header.body_start :]


def parse_announcement(data: bytes) -> tuple[bytes, ...]:
    if len(data) > ANNOUNCEMENT_BYTES_MAX:
        raise TopicsProtocolError(f"topics in {len(data)} bytes; at most {ANNOUNCEMENT_BYTES_MAX} are allowed")
    return parse_names(data)


def parse_names(data: bytes) -> tuple[bytes, ...]:
    return tuple(decode_name(word) for word in data.split(b" ") if word)


def format_names(names: tuple[bytes, ...]) -> bytes:
    return b" ".join(map(encode_name, names))


def integer(text: bytes) -> int:
    if not _DIGITS.match(text) or (number := int(text)) > INTEGER_MAX:
        raise TopicsProtocolError(f"{text[:30]!r} is not a whole number of at most {INTEGER_MAX}")
    return number


def number(extensions: Extensions, key: str) -> int | None:
    """Give the whole number of an extension field; None when the field is absent."""
    return None if key not in extensions else integer(extensions[key])


def name(extensions: Extensions, key: str) -> bytes | None:
    return None if key not in extensions else decode_name(extensions[key])


def extend(**values: int | bytes | None) -> dict[str, bytes]:
    """Make extension fields: whole numbers in decimal, names encoded; what is None is left out."""
    return {
        key: str(value).encode("ascii") if isinstance(value, int) else encode_name(value)
        for key, value in values.items()
        if value is not None
    }


def format_servers(servers: Mapping[bytes, bytes], start: int = 0) -> bytes:
    """Write servers and their addresses as one extension value: as many as fit, beginning at the `start`-th name.

    A caller who counts `start` up sends every server sooner or later, however many there are.
    """
    ordered = sorted(servers.items())
    turn = start % len(ordered) if ordered else 0
    words: list[bytes] = []
    size = 0
    for server, address in ordered[turn:] + ordered[:turn]:
        word = b",".join(encode_name(part).replace(b",", b"%2C") for part in (server, address))
        size += len(word) + 1
        if size > SERVERS_BYTES_MAX:
            break
        words.append(word)
    return b",".join(words)


def parse_servers(extensions: Extensions, key: str) -> dict[bytes, bytes]:
    """Read what `format_servers` wrote; nothing when the field is absent."""
    value = extensions.get(key, b"")
    parts = value.split(b",") if value else []
    if len(value) > SERVERS_BYTES_MAX or len(parts) % 2:
        raise TopicsProtocolError(f"a list of servers needs pairs of id and address in at most {SERVERS_BYTES_MAX} bytes")
    names = [decode_name(part) for part in parts]
    return dict(zip(names[::2], names[1::2], strict=True))


def digest_servers(servers: Iterable[bytes]) -> int:
    """Give a number by which two parties see whether they know the same servers."""
    digest = xxhash.xxh3_64(b" ".join(map(encode_name, sorted(servers))))
    return digest.intdigest() >> 1  # 63 bits: what an extension field carries


def format_message(message: Message) -> bytes:
    """Write one message; `parse` reads it back as it was."""
    match message:
        case Subscribe(sender, topic):
            return format_header(b"SUBSCRIBE", (sender, topic), message.extensions)
        case Unsubscribe(sender, topic):
            return format_header(b"UNSUBSCRIBE", (sender, topic), message.extensions)
        case Get(sender, topic, last):
            return format_header(b"GET", (sender, topic, last), message.extensions)
        case Put(sender, topic, counter, body):
            return format_header(b"PUT", (sender, topic, b"%d" % counter), message.extensions) + body
        case Periodic(sender, topics):
            return format_header(b"PERIODIC", (sender,), message.extensions) + format_names(topics)
        case Merge(sender, topic, address):
            return format_header(b"MERGE", (sender, topic, address), message.extensions)
        case Transfer(sender, topic, data):
            return format_header(b"TRANSFER", (sender, topic), message.extensions) + data
        case Status(sender, status, found, body):
            return format_status_header(sender, status, found, message.extensions) + body


def format_status_header(sender: bytes, status: bytes, found: bytes | None, extensions: Extensions) -> bytes:
    words = [b"STATUS", encode_name(sender), status]
    if found is not None:  # a leading @ would make it an extension field
        words.append(b"%40" + encode_name(found[1:]) if found.startswith(b"@") else encode_name(found))
    return b" ".join(words + _extension_words(extensions)) + END


def format_header(head: bytes, fields: tuple[bytes, ...], extensions: Extensions) -> bytes:
    return b" ".join([head, *map(encode_name, fields), *_extension_words(extensions)]) + END


def _extension_words(extensions: Extensions) -> list[bytes]:
    return [b"@%s=%s" % (key.encode("ascii"), value) for key, value in extensions.items()]
