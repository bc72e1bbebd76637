"""Ids and ticks have the exact layouts the design gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.errors import InvalidValueError
from postroad.types import MessageId, make_tick, tick_counter, tick_milliseconds

u32 = st.integers(0, 2**32 - 1)
milliseconds = st.integers(0, 2**48 - 1)
counters = st.integers(0, 2**16 - 1)


def test_a_message_id_is_publisher_broker_milliseconds_counter_big_endian() -> None:
    """The layout, byte by byte."""
    made = MessageId.make(0x01020304, 0x05060708, 0x090A0B0C0D0E, 0x0F10)
    assert bytes(made) == bytes(range(1, 17))
    assert str(made) == "01020304-05060708-090a0b0c0d0e-0f10"


@given(u32, u32, milliseconds, counters)
def test_a_message_id_survives_bytes_and_text(publisher: int, broker: int, ms: int, counter: int) -> None:
    """Both forms read back as the same id."""
    made = MessageId.make(publisher, broker, ms, counter)
    assert MessageId.from_bytes(bytes(made)) == made == MessageId.parse(str(made))
    assert (made.milliseconds, made.counter) == (ms, counter)


@given(milliseconds, counters)
def test_a_tick_is_the_last_eight_bytes_of_an_id(ms: int, counter: int) -> None:
    """Tick and id share their clock's layout."""
    tick = make_tick(ms, counter)
    assert tick.to_bytes(8, "big") == bytes(MessageId.make(1, 2, ms, counter))[8:]
    assert (tick_milliseconds(tick), tick_counter(tick)) == (ms, counter)


@pytest.mark.parametrize("text", ["", "12", "zz" * 16, "00" * 17, "0" * 31])
def test_text_that_is_no_id_is_refused(text: str) -> None:
    """The error is typed, whatever the text."""
    with pytest.raises(InvalidValueError):
        MessageId.parse(text)


@pytest.mark.parametrize(("ms", "counter"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**16)])
def test_a_tick_out_of_its_layout_is_refused(ms: int, counter: int) -> None:
    """48 bits of milliseconds, 16 of counter."""
    with pytest.raises(InvalidValueError):
        make_tick(ms, counter)
    with pytest.raises(InvalidValueError):
        MessageId.make(2**32, 0, 0)
