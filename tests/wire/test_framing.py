"""The frame decoder: any chunking gives the same frames, and memory is bounded by the configured maximum."""

from __future__ import annotations

import pytest

from postroad.errors import FrameTooLargeError
from postroad.wire.framing import FrameDecoder, encode_frame


def test_frames_survive_any_cut() -> None:
    """Two frames cut at every place come out the same."""
    data = b"".join(encode_frame(1, 2, b"abc") + encode_frame(3, 4, b""))
    for cut in range(len(data)):
        decoder = FrameDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == [(1, 2, b"abc"), (3, 4, b"")]


def test_a_frame_above_the_maximum_is_refused_at_its_header() -> None:
    """Nothing of it is kept."""
    decoder = FrameDecoder(max_bytes=100)
    with pytest.raises(FrameTooLargeError):
        decoder.feed(b"\xff\xff\xff\xff" + bytes(50))
    assert decoder.buffered == 0
