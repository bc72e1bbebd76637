"""What waits on a connection: order, priorities, bounds."""

from __future__ import annotations

from postroad.transport.outbox import FRAME_COST, Outbox, OutboxLimits

LIMITS = OutboxLimits(data_bytes_max=10_000, control_bytes_max=5_000, high_bytes=8_000, low_bytes=2_000)


def outbox(*, ordered: bool) -> Outbox:
    return Outbox(LIMITS, ordered=ordered)


def test_control_leaves_before_data_between_brokers() -> None:
    """A NACK must not wait behind a megabyte of rows."""
    box = outbox(ordered=False)
    box.put([b"data 1"], control=False)
    box.put([b"control"], control=True)
    box.put([b"data 2"], control=False)
    assert box.take(1000) == ([b"control", b"data 1", b"data 2"], 19)


def test_data_beyond_the_bound_is_dropped_and_counted_and_control_is_not() -> None:
    """Trap 7: overflow drops data, never control."""
    box = outbox(ordered=False)
    assert box.put([b"d" * 9_000], control=False)
    assert not box.put([b"d" * 2_000], control=False)
    assert box.put([b"c" * 4_500], control=True)
    assert (box.dropped_frames, box.dropped_bytes, len(box)) == (1, 2_000, 13_500)
    assert not box.overflown
    box.put([b"c" * 4_500], control=True)
    assert box.overflown


def test_a_clients_packets_keep_their_order_and_none_is_dropped() -> None:
    """A position must not overtake the rows below it."""
    box = outbox(ordered=True)
    for number in range(3):
        assert box.put([bytes([number]) * 4_000], control=False)
    assert box.overflown
    assert [each[:1] for each in box.take(100_000)[0]] == [b"\0", b"\1", b"\2"]
    assert not box.overflown


def test_take_gives_whole_frames_about_as_many_bytes_as_asked_for() -> None:
    """A frame's buffers stay together."""
    box = outbox(ordered=True)
    box.put([b"head", b"body" * 4], control=False)
    box.put([b"next"], control=False)
    assert box.take(5) == ([b"head", b"body" * 4], 20)
    assert len(box) == 4
    assert box.take(5) == ([b"next"], 4)
    assert box.take(5) == ([], 0)


def test_small_frames_count_for_what_they_take_in_memory() -> None:
    """A million pongs of ten bytes are not ten megabytes."""
    box = outbox(ordered=True)
    for _ in range(100):
        box.put([b"p" * 10], control=False)
    assert len(box) == 1_000
    assert box.held == 1_000 + 100 * FRAME_COST
    assert box.overflown
