"""The eight messages, to the byte; hostile bytes raise one typed error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.errors import InvalidValueError, TopicsProtocolError
from postroad.topics.machines import messages as m
from postroad.topics.machines import transfer as t

names = st.binary(min_size=1, max_size=60)
numbers = st.integers(0, 2**63 - 1)
extensions = st.dictionaries(
    st.text("abcdefghij", min_size=1, max_size=3), st.binary(min_size=1, max_size=20).map(m.encode_name), max_size=4
)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (m.Subscribe(b"alice", b"news"), b"SUBSCRIBE alice news\r\n\r\n"),
        (m.Unsubscribe(b"alice", b"news"), b"UNSUBSCRIBE alice news\r\n\r\n"),
        (m.Get(b"alice", b"news", b"-1"), b"GET alice news -1\r\n\r\n"),
        (m.Put(b"bob", b"news", 7, b"hello\r\n\r\nworld"), b"PUT bob news 7\r\n\r\nhello\r\n\r\nworld"),
        (m.Periodic(b"server1", ()), b"PERIODIC server1\r\n\r\n"),
        (m.Periodic(b"server1", (b"news", b"sport")), b"PERIODIC server1\r\n\r\nnews sport"),
        (m.Merge(b"proxy1", b"news", b"tcp://127.0.0.1:5"), b"MERGE proxy1 news tcp://127.0.0.1:5\r\n\r\n"),
        (
            m.Transfer(b"server2", b"news", b"alice 7:bob\r\n*7:bob\r\nhi"),
            b"TRANSFER server2 news\r\n\r\nalice 7:bob\r\n*7:bob\r\nhi",
        ),
        (m.Status(b"server1", b"OK"), b"STATUS server1 OK\r\n\r\n"),
        (m.Status(b"server1", b"OK", b"7:bob", b"hello"), b"STATUS server1 OK 7:bob\r\n\r\nhello"),
    ],
)
def test_a_message_without_extensions_is_the_seeds_bytes(message: m.Message, payload: bytes) -> None:
    """Section 3.1, each of the eight formats, both ways."""
    assert m.format_message(message) == payload
    assert m.parse(payload) == message


def test_a_space_before_the_end_of_the_header_is_accepted() -> None:
    """The seed's text can be read with a space before CR LF CR LF."""
    assert m.parse(b"SUBSCRIBE alice news \r\n\r\n") == m.Subscribe(b"alice", b"news")


@pytest.mark.parametrize("name", ["a/b", "a.b", "..", "/etc/passwd", "naïve", "a*b", "@home", "a=b", "!", "C:\\x"])
def test_an_ordinary_name_travels_as_it_is(name: str) -> None:
    """Only what would break the header is encoded."""
    assert m.encode_name(name.encode()) == name.encode()


def test_special_bytes_of_a_name_are_percent_encoded() -> None:
    """Space, controls, DEL and the percent sign."""
    assert m.encode_name(b"a b%c\r\n\x00\x7f") == b"a%20b%25c%0D%0A%00%7F"


@given(names)
def test_any_name_survives(name: bytes) -> None:
    """Any bytes, with no space or control left in the header."""
    encoded = m.encode_name(name)
    assert m.decode_name(encoded) == name
    assert not set(encoded) & {*range(0x21), 0x7F}


@given(
    st.one_of(
        st.builds(m.Subscribe, names, names, extensions=extensions),
        st.builds(m.Unsubscribe, names, names, extensions=extensions),
        st.builds(m.Get, names, names, names, extensions=extensions),
        st.builds(m.Put, names, names, numbers, st.binary(max_size=100), extensions=extensions),
        st.builds(m.Periodic, names, st.lists(names, max_size=5).map(tuple), extensions=extensions),
        st.builds(m.Merge, names, names, names, extensions=extensions),
        st.builds(m.Transfer, names, names, st.binary(max_size=100), extensions=extensions),
        st.builds(
            m.Status, names, st.sampled_from([b"OK", b"BUSY"]), st.none() | names, st.binary(max_size=100), extensions=extensions
        ),
    )
)
def test_any_message_survives_its_bytes(message: m.Message) -> None:
    """`parse` undoes `format_message`, with extensions."""
    assert m.parse(m.format_message(message)) == message


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_the_typed_error(payload: bytes) -> None:
    """Whatever a stranger sends."""
    for data in (payload, b"GET " + payload + m.END, b"STATUS a " + payload + m.END, b"PUT a b " + payload + m.END):
        try:
            m.parse(data)
        except TopicsProtocolError:
            continue


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"GET alice news -1",
        b"GET alice news\r\n\r\n",
        b"GET alice  -1\r\n\r\n",
        b"get alice news -1\r\n\r\n",
        b"PUT alice news x\r\n\r\n",
        b"PUT alice news -3\r\n\r\n",
        b"PUT alice news 9223372036854775808\r\n\r\n",
        b"PUT alice news 123456789012345678901\r\n\r\n",
        b"SUBSCRIBE a b c\r\n\r\n",
        b"SUBSCRIBE a b @=1\r\n\r\n",
        b"SUBSCRIBE a " + b"x" * (m.NAME_BYTES_MAX + 1) + b"\r\n\r\n",
        b"SUBSCRIBE a b" + b" @k=1" * (m.EXTENSIONS_MAX + 1) + b"\r\n\r\n",
        b"x" * (m.HEADER_BYTES_MAX + 10) + b"\r\n\r\n",
        b"PERIODIC a\r\n\r\n" + b"x " * (m.ANNOUNCEMENT_BYTES_MAX // 2 + 1),
        b"STATUS a OK\r\n\r\n" + bytes(m.BODY_BYTES_MAX + 1),
    ],
)
def test_a_broken_message_is_refused(payload: bytes) -> None:
    """Missing fields, wrong numbers, names and headers beyond their bounds."""
    with pytest.raises(TopicsProtocolError):
        m.parse(payload)


def test_a_name_nobody_can_carry_is_refused_in_plain_words() -> None:
    """Empty, or longer than the bound."""
    for name in (b"", b"x" * (m.NAME_BYTES_MAX + 1)):
        with pytest.raises(InvalidValueError, match="topic"):
            m.check_name(name, "topic")


def test_unknown_extensions_are_kept_apart_from_the_fields() -> None:
    """A later version's field does not disturb this one."""
    parsed = m.parse(b"STATUS s OK @zz=1 @t=5\r\n\r\nbody")
    assert isinstance(parsed, m.Status)
    assert parsed.message_id is None
    assert m.number(parsed.extensions, "t") == 5


@given(st.binary(max_size=80))
def test_escaping_of_transferred_content_is_undone(content: bytes) -> None:
    """Section 3.1.7: * is /s and / is //."""
    escaped = t.escape(content)
    assert b"*" not in escaped
    assert t.unescape(escaped) == content


def test_the_escapes_are_the_seeds() -> None:
    """Section 3.1.7, to the byte."""
    assert t.escape(b"a*b/c") == b"a/sb//c"


subscriber_lines = st.builds(
    t.SubscriberLine, names, st.lists(names, max_size=4).map(tuple), numbers, numbers, numbers, subscribed=st.booleans()
)


message_ids = names.filter(lambda name: name != m.NO_MESSAGE_ID)


@given(
    st.lists(subscriber_lines, max_size=4),
    st.lists(st.builds(t.PublisherLine, names, numbers, numbers, numbers), max_size=4),
    st.lists(st.builds(t.TransferredMessage, message_ids, st.none() | numbers, st.binary(max_size=60)), max_size=4),
    st.lists(names, max_size=3),
    names,
)
def test_a_transfer_survives_its_bytes(
    subscribers: list[t.SubscriberLine],
    publishers: list[t.PublisherLine],
    messages: list[t.TransferredMessage],
    lineage: list[bytes],
    copy: bytes,
) -> None:
    """Names and contents full of stars, slashes, spaces and line ends."""
    lines = [t.copy_line(copy), t.lineage_line(lineage), *map(t.publisher_line, publishers), *map(t.subscriber_line, subscribers)]
    parsed = t.parse_transfer(b"".join(lines) + b"".join(map(t.message_text, messages)))
    assert parsed == t.TransferData(copy, lineage, publishers, subscribers, messages)


def test_an_old_peers_transfer_parses() -> None:
    """Section 3.1.7 without any of our fields."""
    parsed = t.parse_transfer(b"alice m1 m2\r\nbob\r\n*m1\r\nfirst*m2\r\nse/scond")
    assert [(s.client, s.unread, s.stamp) for s in parsed.subscribers] == [(b"alice", (b"m1", b"m2"), None), (b"bob", (), None)]
    assert [(x.id, x.body, x.stamp) for x in parsed.messages] == [(b"m1", b"first", None), (b"m2", b"se*cond", None)]


@pytest.mark.parametrize("data", [b"a " * (t.WORDS_MAX + 1) + b"\r\n", b"\r\n" * (t.LINES_MAX + 1), b"*" * (t.MESSAGES_MAX + 1)])
def test_a_transfer_beyond_its_bounds_is_refused(data: bytes) -> None:
    """Before millions of objects are made of it."""
    with pytest.raises(TopicsProtocolError, match="more than"):
        t.parse_transfer(data)


@given(st.binary(max_size=200))
def test_arbitrary_transfer_bytes_raise_nothing_but_the_typed_error(data: bytes) -> None:
    """Whatever a stranger sends as a copy."""
    for attempt in (data, b"@pub " + data + b"\r\n", b"alice @s=" + data + b"\r\n*" + data):
        try:
            t.parse_transfer(attempt)
        except TopicsProtocolError:
            continue
