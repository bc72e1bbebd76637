"""The demo as a program: the tour, then the overlay that goes on for the web console."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.browser  # its ten starts of brokers take too long for `make test`


def test_the_demo_shows_its_console_and_goes_on_if_asked() -> None:
    """The address is printed during the tour and after it; the console answers there; SIGTERM ends all, as Ctrl-C does."""
    command = [sys.executable, "-m", "postroad.cli", "demo", "--messages", "300", "--no-audit", "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        lines: list[str] = []
        addresses: list[str] = []
        while len(addresses) < 2:
            line = running.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
            addresses += re.findall(r"http://\S+#key=\S+", line)
        assert addresses[0] == addresses[1]
        assert any("every matching message was delivered exactly once" in line for line in lines)
        with urlopen(f"http://{urlsplit(addresses[0]).netloc}/healthz", timeout=20) as answer:
            assert answer.status == 200
        running.send_signal(signal.SIGTERM)
        rest, _ = running.communicate(timeout=60)
        with pytest.raises(OSError, match="refused"):
            urlopen(f"http://{urlsplit(addresses[0]).netloc}/healthz", timeout=20)
        assert (running.returncode, rest.split()[-1]) == (0, "stopped"), rest
