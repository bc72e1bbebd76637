"""The frame decoder: any chunking gives the same frames, and memory is bounded by the configured maximum."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.errors import FrameTooLargeError, InvalidValueError, MalformedFrameError, WireError
from postroad.wire.framing import HEADER, HEADER_BYTES, Frame, FrameDecoder, encode_frame

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

frames = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF), st.binary(max_size=40))
chunk_sizes = st.lists(st.integers(1, 30), min_size=1)
# Headers that are often sound, so that random bytes get past the first check now and then.
near_frames = st.builds(
    lambda length, rest: length.to_bytes(4, "big") + rest, st.integers(0, 60) | st.integers(0, 2**32 - 1), st.binary(max_size=50)
)


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of the given sizes, over and over."""
    pieces, position, turn = [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[position : position + size])
        position, turn = position + size, turn + 1
    return pieces


def run(pieces: list[bytes], max_bytes: int) -> tuple[list[Frame], str | None]:
    """Feed the pieces; return the frames and the kind of error that ended them."""
    decoder, found = FrameDecoder(max_bytes), list[Frame]()
    for piece in pieces:
        try:
            found += decoder.feed(piece)
        except MalformedFrameError as error:
            return found + list(error.frames), type(error).__name__
        assert decoder.buffered <= max_bytes
    return found, None


@given(st.lists(frames, max_size=8), chunk_sizes)
def test_frames_survive_any_chunking(sent: list[tuple[int, int, bytes]], sizes: list[int]) -> None:
    """What was written comes out, however the stream is cut."""
    data = b"".join(b"".join(encode_frame(*frame)) for frame in sent)
    assert run(chunks(data, sizes), 100) == (sent, None)


@given(st.lists(near_frames, max_size=5).map(b"".join) | st.binary(max_size=200), chunk_sizes)
def test_any_bytes_give_frames_or_a_typed_error_whatever_the_chunking(data: bytes, sizes: list[int]) -> None:
    """The same frames and the same error, in one piece or in many."""
    assert run(chunks(data, sizes), 64) == run([data], 64)


@pytest.mark.parametrize("length", range(HEADER_BYTES))
def test_a_frame_shorter_than_its_header_is_malformed(length: int) -> None:
    """The length counts the header."""
    with pytest.raises(MalformedFrameError):
        FrameDecoder().feed(HEADER.pack(length, 1, 1))


def test_a_frame_at_the_maximum_passes_and_one_above_is_refused_at_its_header() -> None:
    """The bound is exact, and no byte of the payload needs to come."""
    decoder = FrameDecoder(max_bytes=100)
    assert decoder.feed(HEADER.pack(100, 7, 8) + bytes(90)) == [(7, 8, bytes(90))]
    with pytest.raises(FrameTooLargeError) as caught:
        decoder.feed(HEADER.pack(101, 7, 8))
    assert (caught.value.length, caught.value.maximum, decoder.buffered) == (101, 100, 0)


def test_a_failed_decoder_stays_failed() -> None:
    """The place in the stream is lost; sound bytes cannot bring it back."""
    decoder = FrameDecoder()
    with pytest.raises(MalformedFrameError) as first:
        decoder.feed(b"".join(encode_frame(1, 2, b"abc")) + bytes(10))
    for _ in range(2):
        with pytest.raises(MalformedFrameError) as later:
            decoder.feed(b"".join(encode_frame(1, 2, b"abc")))
        assert (str(later.value), later.value.frames) == (str(first.value), ())


def test_sound_frames_before_a_bad_one_are_not_lost() -> None:
    """They ride on the error, once."""
    with pytest.raises(WireError) as caught:
        FrameDecoder().feed(b"".join(encode_frame(1, 2, b"abc")) + bytes(10))
    assert isinstance(caught.value, MalformedFrameError)
    assert caught.value.frames == ((1, 2, b"abc"),)


def test_memory_follows_the_bytes_that_came_not_the_length_announced() -> None:
    """A header that promises 4 GiB under a huge maximum costs nothing until bytes come, even one by one."""
    decoder = FrameDecoder(max_bytes=0xFFFF_FFFF)
    tracemalloc.start()
    try:
        decoder.feed(HEADER.pack(0xFFFF_FFFF, 1, 1))
        for _ in range(20_000):
            decoder.feed(b"x")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.buffered == 20_000 + HEADER_BYTES
    assert held < 40_000
    assert peak < 100_000


def test_a_large_frame_costs_time_in_proportion_to_its_size() -> None:
    """Bytes are moved a bounded number of times: the memory in use never passes twice the frame."""
    size = 4 << 20
    data = b"".join(encode_frame(1, 2, bytes(size)))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        found = [frame for start in range(0, len(data), 4096) for frame in decoder.feed(data[start : start + 4096])]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(method, packet_id, len(payload)) for method, packet_id, payload in found] == [(1, 2, size)]
    assert peak < 2 * size


def test_a_payload_never_changes_under_its_reader() -> None:
    """A reused receive buffer may be overwritten; frames keep their bytes, large and small."""
    for size in (10, 100_000):
        received = bytearray(b"".join(encode_frame(1, 2, b"a" * size)))
        for pieces in ([received], [received[:50_000], received[50_000:]]):
            decoder = FrameDecoder()
            [(_, _, payload)] = [frame for piece in pieces for frame in decoder.feed(memoryview(piece))]
            for piece in pieces:
                piece[:] = b"z" * len(piece)
            assert bytes(payload) == b"a" * size
            assert memoryview(payload).readonly
            received[:] = b"".join(encode_frame(1, 2, b"a" * size))


def test_a_payload_starts_at_a_multiple_of_eight_in_memory_unless_it_is_a_view_of_a_chunk() -> None:
    """Bodies are then aligned for Arrow and numpy: copied and reassembled payloads begin their own memory."""
    import numpy as np

    small = b"".join(encode_frame(1, 2, b"a" * 100))
    large = b"".join(encode_frame(1, 2, b"a" * 100_000))
    decoder = FrameDecoder()
    for frame in decoder.feed(small + small[:50]) + decoder.feed(small[50:] + large[:60_000]) + decoder.feed(large[60_000:]):
        assert np.frombuffer(frame[2], np.uint8).ctypes.data % 8 == 0


def test_the_maximum_may_be_raised_in_mid_stream() -> None:
    """As happens when a peer has identified itself."""
    decoder = FrameDecoder(max_bytes=64)
    decoder.max_bytes = 1024
    assert len(decoder.feed(b"".join(encode_frame(1, 2, bytes(500))))) == 1


@pytest.mark.parametrize("max_bytes", [0, 9, 1 << 32])
def test_a_maximum_without_sense_is_refused(max_bytes: int) -> None:
    """It must hold a header and fit the length field."""
    with pytest.raises(InvalidValueError):
        FrameDecoder(max_bytes)


def test_encoding_passes_a_large_body_through_uncopied() -> None:
    """The body's buffers are the very objects given."""
    body: list[bytes | memoryview] = [bytes(10_000), memoryview(bytes(20_000))]
    buffers = encode_frame(1, 2, b"head", body)
    assert buffers[1] is body[0]
    assert buffers[2] is body[1]
    assert FrameDecoder().feed(b"".join(buffers)) == [(1, 2, b"head" + bytes(30_000))]


def test_a_small_frame_is_one_buffer() -> None:
    """Writing one costs less than writing the three it is made of."""
    [buffer] = encode_frame(1, 2, b"head", [bytes(10), memoryview(b"body")])
    assert FrameDecoder().feed(buffer) == [(1, 2, b"head" + bytes(10) + b"body")]


def test_a_frame_too_large_to_send_is_refused() -> None:
    """The sender notices before the receiver does."""
    with pytest.raises(FrameTooLargeError):
        encode_frame(1, 2, b"", [bytes(100)], max_bytes=100)


def test_a_few_frames_at_a_time_are_the_same_frames() -> None:
    """A flood is cut in slices; what is not cut yet is counted, and nothing is lost between the slices."""
    stream = b"".join(b"".join(encode_frame(7, number, bytes([number % 256]) * (number % 40))) for number in range(1, 200))
    whole = FrameDecoder().feed(stream)
    for size in (1, 3, 16):
        decoder = FrameDecoder()
        frames = []
        for start in range(0, len(stream), 1_000):
            frames += decoder.feed(stream[start : start + 1_000], size)
            while decoder.uncut:
                slice_ = decoder.feed(b"", size)
                assert len(slice_) <= size
                frames += slice_
        assert [tuple(frame) for frame in frames] == [tuple(frame) for frame in whole]


def test_bytes_that_come_before_the_rest_is_cut_are_kept_behind_it() -> None:
    """A loop may deliver once more after it was asked to pause."""
    stream = b"".join(b"".join(encode_frame(7, number, b"x")) for number in range(1, 9))
    decoder = FrameDecoder()
    frames = decoder.feed(stream[:50], 2)
    frames += decoder.feed(stream[50:], 2)
    assert decoder.uncut == len(stream) - 4 * 11
    frames += decoder.feed(b"")
    assert [frame[1] for frame in frames] == list(range(1, 9))
