r"""The body of TRANSFER: lines, then messages, each message behind a `*`.

A line ends with CR LF. The seed's line is `subscriber id id ...`, the ids of the messages that subscriber has yet to
receive; ours carries more fields behind the name (`@s=` stamp, `@o=` operation number, `@r=` reads, `@u=1` when
unsubscribed). Lines that begin with `@` are ours alone: `@copy id`, `@line id ...` (lineage) and `@pub publisher counter
digest stamp`. A message is its id (and `@s=stamp`), CR LF and its content, in which `*` is written `/s` and `/` is written
`//`. In names, `*` and a leading `@` are percent-encoded too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from postroad.errors import TopicsProtocolError
from postroad.topics.machines.messages import BODY_BYTES_MAX, NO_MESSAGE_ID, decode_name, encode_name, integer

LINE_END: Final = b"\r\n"
LINES_MAX: Final = 1_000_000
WORDS_MAX: Final = 4_000_000
MESSAGES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PublisherLine:
    publisher: bytes
    counter: int
    digest: int
    stamp: int


@dataclass(frozen=True, slots=True)
class SubscriberLine:
    """`stamp` is None in an old peer's line. A subscriber may have several lines; their ids are joined."""

    client: bytes
    unread: tuple[bytes, ...]
    stamp: int | None = None
    operation: int = 0
    reads: int = 0
    subscribed: bool = True


@dataclass(frozen=True, slots=True)
class TransferredMessage:
    id: bytes
    stamp: int | None
    body: bytes


@dataclass(slots=True)
class TransferData:
    """One part of a transfer, parsed; `copy` is empty in an old peer's."""

    copy: bytes = b""
    lineage: list[bytes] = field(default_factory=list)
    publishers: list[PublisherLine] = field(default_factory=list)
    subscribers: list[SubscriberLine] = field(default_factory=list)
    messages: list[TransferredMessage] = field(default_factory=list)

    def join(self, other: TransferData) -> None:
        """Take in the next part of the same transfer."""
        self.copy = self.copy or other.copy
        self.lineage += other.lineage
        self.publishers += other.publishers
        self.subscribers += other.subscribers
        self.messages += other.messages


def escape(content: bytes) -> bytes:
    return content.replace(b"/", b"//").replace(b"*", b"/s")


def unescape(content: bytes) -> bytes:
    pieces = content.split(b"//")
    for index, piece in enumerate(pieces):
        pieces[index] = piece.replace(b"/s", b"*")
        if b"/" in pieces[index]:
            raise TopicsProtocolError("a / in a transferred message that is neither // nor /s")
    return b"/".join(pieces)


def _encode(name: bytes) -> bytes:
    text = encode_name(name).replace(b"*", b"%2A")
    return b"%40" + text[1:] if text.startswith(b"@") else text


def copy_line(copy: bytes) -> bytes:
    return b"@copy %s\r\n" % _encode(copy)


def lineage_line(copies: Iterable[bytes]) -> bytes:
    return b"@line %s\r\n" % b" ".join(map(_encode, copies))


def publisher_line(line: PublisherLine) -> bytes:
    return b"@pub %s %d %d %d\r\n" % (_encode(line.publisher), line.counter, line.digest, line.stamp)


def subscriber_line(line: SubscriberLine) -> bytes:
    words = [_encode(line.client)]
    if line.stamp is not None:
        words += [b"@s=%d" % line.stamp, b"@o=%d" % line.operation, b"@r=%d" % line.reads]
    if not line.subscribed:
        words.append(b"@u=1")
    return b" ".join([*words, *map(_encode, line.unread)]) + LINE_END


def message_text(message: TransferredMessage) -> bytes:
    stamp = b"" if message.stamp is None else b" @s=%d" % message.stamp
    return b"*" + _encode(message.id) + stamp + LINE_END + escape(message.body)


def parse_transfer(data: bytes) -> TransferData:
    if data.count(b"*") > MESSAGES_MAX:
        raise TopicsProtocolError(f"more than {MESSAGES_MAX} messages in one part of a transfer")
    lines, *messages = data.split(b"*")
    parsed = TransferData()
    if lines and not lines.endswith(LINE_END):
        raise TopicsProtocolError("the subscriber lines of a transfer do not end with CR LF")
    texts = lines.split(LINE_END)[:-1]
    if len(texts) > LINES_MAX or lines.count(b" ") > WORDS_MAX:
        raise TopicsProtocolError(f"more than {LINES_MAX} lines or {WORDS_MAX} words in one part of a transfer")
    for text in texts:
        _parse_line(text, parsed)
    parsed.messages = [_parse_message(text) for text in messages]
    return parsed


def _parse_line(text: bytes, into: TransferData) -> None:
    head, *words = text.split(b" ")
    match head:
        case b"@copy":
            into.copy = decode_name(_field(words, 0))
        case b"@line":
            into.lineage += [decode_name(word) for word in words if word]
        case b"@pub":
            numbers = [integer(_field(words, index)) for index in (1, 2, 3)]
            into.publishers.append(PublisherLine(decode_name(_field(words, 0)), *numbers))
        case _ if head.startswith(b"@"):
            return  # a later version's line
        case _:
            into.subscribers.append(_parse_subscriber(head, words))


def _field(words: list[bytes], index: int) -> bytes:
    if index >= len(words):
        raise TopicsProtocolError("a line of a transfer is cut short")
    return words[index]


def _parse_subscriber(head: bytes, words: list[bytes]) -> SubscriberLine:
    ours = dict(word.split(b"=", 1) for word in words if word.startswith(b"@") and b"=" in word)
    unread = tuple(decode_name(word) for word in words if word and not word.startswith(b"@"))
    return SubscriberLine(
        decode_name(head),
        unread,
        integer(ours[b"@s"]) if b"@s" in ours else None,
        integer(ours.get(b"@o", b"0")),
        integer(ours.get(b"@r", b"0")),
        ours.get(b"@u") != b"1",
    )


def _parse_message(text: bytes) -> TransferredMessage:
    head, found, content = text.partition(LINE_END)
    if not found:
        raise TopicsProtocolError("a transferred message has no CR LF after its id")
    word, _, stamp = head.partition(b" @s=")
    if word == NO_MESSAGE_ID:
        raise TopicsProtocolError("no message has the id -1")
    body = unescape(content)
    if len(body) > BODY_BYTES_MAX:
        raise TopicsProtocolError(f"a transferred message of {len(body)} bytes; at most {BODY_BYTES_MAX} are allowed")
    return TransferredMessage(decode_name(word), integer(stamp) if stamp else None, body)
