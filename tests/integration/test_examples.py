"""The examples run as the docs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from postroad.testing import broker

ROOT = Path(__file__).parents[2]


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_the_quotes_ticker_shows_what_matches() -> None:
    """A newcomer's two terminals: a publisher, and a subscriber that gets the matching quotes."""
    with broker() as url, start("quotes_subscriber.py", "--url", url, "--filter", "price > 0", "--count", "5") as subscriber:
        assert subscriber.stdout is not None
        assert "subscribed" in subscriber.stdout.readline()
        with start("quotes_publisher.py", "--url", url, "--count", "5", "--pause", "0") as publisher:
            published, _ = publisher.communicate(timeout=30)
        shown, _ = subscriber.communicate(timeout=30)
        assert publisher.returncode == subscriber.returncode == 0
        assert len(shown.splitlines()) == 5
        prices = [line.split()[-1] for line in published.splitlines()]
        assert [line.split()[1] for line in shown.splitlines()] == prices
