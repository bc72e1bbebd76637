"""Feed the batch decoder with spoilt batches: `python tests/wire/fuzz_batches.py SEED COUNT`.

A process of its own, because the fault looked for is a crash of the interpreter. What decodes must then bear everything we do
with batches. Prints the counts; any exception but `BatchError` ends it.
"""

from __future__ import annotations

import random
import resource
import struct
import sys
from pathlib import Path

import numpy as np

from postroad.core.batch.batch import Batch, concat
from postroad.core.batch.build import Row, build_batches
from postroad.errors import BatchError
from postroad.types import AttributeValue
from postroad.wire.batches import BatchDecoder, encode_batch

MEMORY_BYTES_MAX = 4 << 30
# Numbers at which lengths, offsets and counts go wrong.
EDGES = [0, 1, 2, 3, 4, 7, 8, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
EDGES += [0x7FFFFFFFFFFFFFFF, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]


def some_value(rng: random.Random, kind: int) -> AttributeValue:
    match kind:
        case 0:
            return rng.random() < 0.5
        case 1:
            return rng.randrange(-5, 5)
        case 2:
            return rng.random()
        case 3:
            return "é" * rng.randrange(4)
        case _:
            return rng.randbytes(rng.randrange(5))


def some_batch(rng: random.Random) -> Batch:
    count = rng.choice([1, 2, 3, 10, 64, 65])
    kinds = [rng.randrange(5) for _ in range(rng.randrange(6))]
    rows = [
        Row(
            rng.randbytes(16),
            {f"a{place}": some_value(rng, kind) for place, kind in enumerate(kinds) if rng.random() < 0.8},
            rng.randbytes(rng.randrange(20)),
        )
        for _ in range(count)
    ]
    [batch] = build_batches(rows, np.arange(1, count + 1, dtype=np.uint64))
    return batch.slice(0, rng.choice([0, count, count]))


def spoil(rng: random.Random, sound: bytes) -> bytes:
    data = bytearray(sound)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        if len(data) < 16:
            break
        # Mostly in the metadata, where the structure is.
        place = rng.randrange(min(len(data), 1100)) if rng.random() < 0.7 else rng.randrange(len(data))
        match rng.randrange(7):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                data[place] = rng.randrange(256)
            case 2:
                data[place & ~3 : (place & ~3) + 4] = struct.pack("<I", rng.choice(EDGES) & 0xFFFFFFFF)
            case 3:
                data[place & ~7 : (place & ~7) + 8] = struct.pack("<Q", rng.choice(EDGES))
            case 4 if (place & ~7) + 8 <= len(data):
                (number,) = struct.unpack_from("<Q", data, place & ~7)
                struct.pack_into("<Q", data, place & ~7, (number + rng.choice([-64, -8, -1, 1, 8, 64])) % (1 << 64))
            case 5:
                del data[place : place + rng.randrange(1, 17)]
            case _:
                source, length = rng.randrange(len(data)), rng.randrange(1, 33)
                data[place : place + length] = data[source : source + length]
    return bytes(data)


def use(batch: Batch) -> None:
    """Do all that the rest of the product does with a batch it received."""
    rows = len(batch)
    for message in batch:
        assert (len(bytes(message.id)), type(message.payload), type(message.tick)) == (16, bytes, int)
        assert None not in message.attributes.values()
    assert Batch(batch.columns).equals(batch)
    assert len(batch.take(np.arange(0, rows, 2))) == (rows + 1) // 2
    batch.filter(np.arange(rows) % 3 == 0)
    assert sum(map(len, concat([batch, batch]))) == 2 * rows
    again = BatchDecoder().decode(b"".join([batch.layout.encoded, batch.columns.serialize().to_pybytes()]))
    assert again.equals(batch)
    batch.slice(rows // 2, rows).compact()
    for name in batch.layout.names:
        batch.attribute(name)


def peak_kib() -> int:
    """The most memory this program has had. Not `ru_maxrss`, which also counts the process that started it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM in /proc/self/status")


def main(seed: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    rng = random.Random(seed)
    sound = [b"".join(encode_batch(some_batch(rng))) for _ in range(60)]
    decoder = BatchDecoder()
    accepted = refused = 0
    for _ in range(count):
        data = spoil(rng, rng.choice(sound))
        try:
            batch = decoder.decode(data, ascending=rng.random() < 0.2)
        except BatchError:
            refused += 1
            continue
        accepted += 1
        use(batch)
    peak_mib = peak_kib() // 1024
    sys.stdout.write(f"{accepted} accepted, {refused} refused, peak {peak_mib} MiB\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
