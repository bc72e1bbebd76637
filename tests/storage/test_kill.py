"""A process that appends is killed at any moment; what it confirmed is there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.storage.rows import batch_of, read_all, rows_of

from postroad.storage import LogOptions, SegmentLog, SqliteMetadata

PUBEND = 5 << 8
SEED = 20260
OPTIONS = LogOptions(segment_bytes=60_000)

APPEND_FOR_EVER = """
import sys
from pathlib import Path
from postroad.storage import LogOptions, SegmentLog
from tests.storage.rows import batch_of
log = SegmentLog.open(Path(sys.argv[1]), 1280, LogOptions(segment_bytes=60_000))
tick = log.state().last_tick + 1
print("open", flush=True)
while True:
    log.append([batch_of(range(tick + i * 10, tick + i * 10 + 10), (1, 2, 3), 100) for i in range(1 + tick % 5)])
    tick = log.state().last_tick + 1
    print(tick - 1, flush=True)
    if tick % 7 == 0:
        log.release(tick - 3000)
"""

STORE_FOR_EVER = """
import sys
from pathlib import Path
from postroad.storage import SqliteMetadata
metadata = SqliteMetadata(Path(sys.argv[1]))
count = metadata.next_incarnation() * 1_000_000
print("open", flush=True)
while True:
    count += 1
    metadata.store([("left", str(count).encode()), ("right", str(count).encode())])
    print(count, flush=True)
"""


def run_and_kill(script: str, path: Path, chance: random.Random) -> list[int]:
    """Start the script, kill it some moments after some confirmations, and return all it confirmed in whole lines."""
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        early = [process.stdout.readline() for _ in range(chance.randint(0, 40))]
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        lines = ("".join(early) + process.stdout.read()).split("\n")
    assert process.returncode == -signal.SIGKILL
    return [int(line) for line in lines[:-1]]


def test_everything_confirmed_before_a_kill_is_in_the_log(tmp_path: Path) -> None:
    """Rows are as they were written, without holes, and at least up to the last confirmed tick."""
    chance = random.Random(SEED)
    acknowledged = 0
    for round_number in range(6):
        confirmed = run_and_kill(APPEND_FOR_EVER, tmp_path, chance)
        acknowledged = confirmed[-1] if confirmed else acknowledged
        log = SegmentLog.open(tmp_path, PUBEND, OPTIONS)
        state = log.state()
        told = f"seed {SEED}, round {round_number}"
        assert state.last_tick >= acknowledged, told
        rows = read_all(log, bytes_max=1 << 20)
        assert [row[0] for row in rows] == [*range(state.released + 1, state.last_tick + 1)], told
        assert [row[2] for row in rows] == [row[2] for row in rows_of([batch_of([r[0] for r in rows], (1,), 100)])], told
        assert {publisher for publisher, _ in state.publishers} <= {1, 2, 3}
        log.abandon()
    assert acknowledged > 100


def test_metadata_confirmed_before_a_kill_is_there_and_whole(tmp_path: Path) -> None:
    """Both keys of a change are there or neither, and incarnations never repeat."""
    chance = random.Random(SEED)
    file = tmp_path / "metadata.sqlite"
    acknowledged = 0
    for round_number in range(4):
        confirmed = run_and_kill(STORE_FOR_EVER, file, chance)
        acknowledged = confirmed[-1] if confirmed else acknowledged
        metadata = SqliteMetadata(file)
        pairs = dict(metadata.load())
        assert pairs.get("left") == pairs.get("right"), f"seed {SEED}, round {round_number}"
        assert int(pairs.get("left", b"0")) >= acknowledged, f"seed {SEED}, round {round_number}"
        metadata.close()
    metadata = SqliteMetadata(file)
    assert metadata.next_incarnation() == 5
    metadata.close()
