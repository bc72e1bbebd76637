"""Frames, packets and batches: `python -m benchmarks.wire`.

Prints the best of many short runs, because the machine is shared and the best is what the code can do. Rows have three
attributes (symbol, price, quantity) and 100 bytes of payload, so a batch has six columns.
"""

from __future__ import annotations

import random
import timeit
from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Batch, concat
from postroad.core.batch.build import Row, build_batches
from postroad.core.batch.row_codec import Rows
from postroad.wire.batches import BatchDecoder, encode_batch
from postroad.wire.codec import decode, encode
from postroad.wire.framing import HEADER, FrameDecoder
from postroad.wire.packets.telesto import PutMessage, PutMessageResponse

REPEATS = 80
RUN_SECONDS = 0.002  # short enough to fit between two interruptions of a busy machine


def best_us(action: Callable[[], object]) -> float:
    """Return the microseconds of one call in the best run."""
    timer = timeit.Timer(action)
    once = max(timer.timeit(1), 1e-7)
    number = max(1, int(RUN_SECONDS / once))
    return min(timer.repeat(REPEATS, number)) / number * 1e6


def report(what: str, microseconds: float, per: int = 1) -> None:
    share = f"{microseconds / per * 1000:9.0f} ns each" if per > 1 else ""
    print(f"  {what:52s} {microseconds:9.2f} us {share}")


def some_rows(count: int) -> list[Row]:
    rng = random.Random(1)
    return [
        Row(rng.randbytes(16), {"symbol": f"S{rng.randrange(500)}", "price": rng.random(), "quantity": n}, rng.randbytes(100))
        for n in range(count)
    ]


def frames() -> None:
    print("frames")
    chunk = (HEADER.pack(128, 1, 1) + bytes(118)) * 512
    decoder = FrameDecoder()
    taken = best_us(lambda: decoder.feed(chunk))
    report(f"512 frames of 128 bytes in a 64 KiB chunk ({512 / taken:.1f} M frames/s)", taken, 512)
    large = HEADER.pack(16 << 20, 1, 1) + bytes((16 << 20) - 10)
    pieces = [large[start : start + (64 << 10)] for start in range(0, len(large), 64 << 10)]
    taken = best_us(lambda: [decoder.feed(piece) for piece in pieces])
    report(f"one frame of 16 MiB in pieces of 64 KiB ({len(large) / taken / 1000:.1f} GB/s)", taken)


def packets() -> None:
    print("packets")
    for packet in (PutMessageResponse((1,)), PutMessage((1,), None, None, 5, bytes(100))):
        name = type(packet).__name__
        [frame] = FrameDecoder().feed(b"".join(encode(packet, 1)))
        report(f"{name}: encode to a frame", best_us(lambda packet=packet: encode(packet, 1)))  # type: ignore[misc]
        report(f"{name}: decode", best_us(lambda frame=frame: decode(frame)))  # type: ignore[misc]
    rows = [tuple(row) for row in some_rows(1000)]
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Rows)
    data = encoder.encode(rows)
    report("1,000 rows: encode", best_us(lambda: encoder.encode(rows)), 1000)
    report("1,000 rows: decode, every field checked", best_us(lambda: decoder.decode(data)), 1000)


def arrow_alone(rows: list[Row], batch: Batch) -> Callable[[], object]:
    """Build the columns from lists that lie ready, with no check at all: what Arrow itself takes."""
    ticks = np.arange(len(rows), dtype=np.uint64)
    lists = [[row.id for row in rows], [row.payload for row in rows]]
    lists += [[row.attributes[name] for row in rows] for name in batch.layout.names]  # type: ignore[misc]
    schema = batch.layout.schema
    types = [field.type for field in schema][1:]

    def build() -> object:
        arrays = [pa.array(ticks), *(pa.array(values, kind) for values, kind in zip(lists, types, strict=True))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return build


def batches(count: int) -> None:
    print(f"batches of {count:,} rows")
    rows = some_rows(count)
    ticks = np.arange(1, count + 1, dtype=np.uint64)
    [batch] = build_batches(rows, ticks)
    lists = {name: [row.attributes[name] for row in rows] for name in batch.layout.names}
    arrays = {name: batch.attribute(name) for name in batch.layout.names}
    ids, payloads = [row.id for row in rows], [row.payload for row in rows]
    data = memoryview(b"".join(encode_batch(batch)))
    decoder = BatchDecoder()
    half = np.arange(0, count, 2)
    report("Arrow alone, lists ready, nothing checked", best_us(arrow_alone(rows, batch)), count)
    report("build from rows", best_us(lambda: build_batches(rows, ticks)), count)
    mixed = [row._replace(attributes={"kind": 1, "level": 0.5}) if n % 2 else row for n, row in enumerate(rows)]
    report("build from rows of two kinds, mixed", best_us(lambda: build_batches(mixed, ticks)), count)
    report("build from lists of columns", best_us(lambda: Batch.from_columns(ids, payloads, lists, ticks)), count)
    whole = b"".join(ids)
    report("build from Arrow columns", best_us(lambda: Batch.from_columns(whole, batch.payloads(), arrays, ticks)), count)
    report("set ticks", best_us(lambda: batch.with_ticks(ticks)))
    report(f"encode ({len(data):,} bytes)", best_us(lambda: encode_batch(Batch(batch.columns, batch.layout))))
    report("decode, validated in full", best_us(lambda: decoder.decode(data)))
    report("decode, ticks must ascend", best_us(lambda: decoder.decode(data, ascending=True)))
    report("decode, layout not seen before", best_us(lambda: BatchDecoder().decode(data)))
    report(
        "of which Arrow: read", best_us(lambda: pa.ipc.read_record_batch(data[len(batch.layout.encoded) :], batch.layout.schema))
    )
    report("of which Arrow: validate in full", best_us(lambda: batch.columns.validate(full=True)))
    report("take every other row", best_us(lambda: batch.take(half)))
    report("slice", best_us(lambda: batch.slice(0, count // 2)))
    report("rows of a tick range", best_us(lambda: batch.within(1, count // 2)))
    report("join four", best_us(lambda: concat([batch] * 4)))
    report("iterate: id, payload, one attribute", best_us(lambda: _read(batch)), count)
    report("iterate: id, payload, all attributes", best_us(lambda: _read_all(batch)), count)


def _read(batch: Batch) -> None:
    for message in Batch(batch.columns):
        _ = message.id, message.payload, message["price"]


def _read_all(batch: Batch) -> None:
    for message in Batch(batch.columns):
        _ = message.id, message.payload, message.attributes


if __name__ == "__main__":
    frames()
    packets()
    for count in (1, 1000):
        batches(count)
