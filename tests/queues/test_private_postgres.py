"""The suite's own PostgreSQL leaves nothing behind, also when the run is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RUN = """
import sys, time
from tests.private_postgres import PrivatePostgres
with PrivatePostgres() as cluster:
    print(cluster.port, cluster.root, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_server_and_no_files(number: signal.Signals) -> None:
    """The watchdog stops the server and removes its directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        port, root = process.stdout.readline().split()
        assert Path(root).exists()
        process.send_signal(number)
    deadline = time.monotonic() + 20
    while Path(root).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(root).exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0
