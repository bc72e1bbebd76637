"""The promise of the whole: a real overlay with crashes, and the books close to the last message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[2]


def close_books(directory: Path, messages: int, strategy: str, timeout_s: float) -> dict[str, float]:
    """Run `benchmarks.books`, which prints what it found as JSON, in a process of its own: Spark has one session per process."""
    command = [sys.executable, "-m", "benchmarks.books", "--messages", str(messages), "--strategy", strategy]
    done = subprocess.run(
        [*command, "--directory", str(directory)], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout)
    sys.stdout.write(done.stdout)
    return found


def check(found: dict[str, float], messages: int) -> None:
    assert found["messages"] > messages
    assert found["not_exactly_once"] == 0, "every subscriber got exactly what it should"
    assert found["unpublished"] == 0, "every message is found where it was published"
    assert found["untracked_unexplained"] == 0, "what no history holds lies in the window of a crash"
    assert (found["first_missing"], found["first_closes"]) == (0, True)
    assert found["left_out"] > 20
    assert (found["named"], found["wrongly_named"], found["not_named"]) == (found["left_out"], 0, 0)
    assert found["sound"], "false entries are within what the blooms were made for"


@pytest.mark.timeout(900)
def test_the_books_of_an_overlay_close_through_two_kills(tmp_path: Path) -> None:
    """Five brokers, forty durable subscribers, two kills: traces equal the truth, nothing is missing, what is left out named."""
    messages = 50_000
    check(close_books(tmp_path, messages, "bloom", 870), messages)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("strategy", ["bloom", "exact"])
def test_the_books_of_a_million_messages_close(tmp_path: Path, strategy: str) -> None:
    """The same with a million messages."""
    check(close_books(tmp_path, 1_000_000, strategy, 3_500), 1_000_000)
