"""Ctrl-C, as a terminal sends it: programs end at once, in good order, without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroad.sync
import postroad.testing

EXAMPLES = Path(__file__).parents[2] / "examples"
POSTROAD = [sys.executable, "-m", "postroad.cli"]


@contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # type: ignore[call-overload]
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_ends_publish_while_its_input_is_silent() -> None:
    """What it read is durable, it says how much that is, and its exit code is that of an interrupted program."""
    with postroad.testing.broker() as url, running([*POSTROAD, "publish", "--ids", "--url", url]) as process:
        with postroad.sync.connect(url) as client:
            subscription = client.subscribe()
            assert process.stdin is not None
            process.stdin.write('{"payload": "one"}\n{"payload": "two"}\n{"payload": "unfin')
            process.stdin.flush()
            assert [next(subscription).payload for _ in range(2)] == [b"one", b"two"]
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "2 messages published\n"


def test_publish_reads_lines_however_they_are_cut() -> None:
    """One line in many pieces, many lines in one, a last line without an end."""
    with postroad.testing.broker() as url, postroad.sync.connect(url) as client:
        subscription = client.subscribe()
        text = "".join(f'{{"payload": "{"x" * size}"}}\n' for size in (1, 70_000, 2, 200_000, 3)) + '{"payload": "end"}'
        subprocess.run([*POSTROAD, "publish", "--url", url], input=text, text=True, check=True, timeout=60, capture_output=True)
        sizes = [len(next(subscription).payload) for _ in range(6)]
        assert sizes == [1, 70_000, 2, 200_000, 3, 3]


@pytest.mark.parametrize("example", ["quotes_publisher.py", "quotes_subscriber.py"])
def test_ctrl_c_ends_an_example_without_a_traceback(example: str) -> None:
    """They run until somebody stops them, so this is how everybody ends them."""
    with postroad.testing.broker() as url, running([sys.executable, "-u", str(EXAMPLES / example), "--url", url]) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert errors == ""
        assert process.returncode == 130
