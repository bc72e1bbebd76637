"""The how-to page takes two plain brokers to two guarded ones: a test runs each of its commands as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from postroad.testing import free_ports
from postroad.transport.programs import own_environment

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "secure.md"
WITHIN_S = 300.0
SHELL_HEAD = """
CONNECT="import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1)"
wait_for() { for _ in $(seq 200); do "%s" -c "$CONNECT" $1 2>/dev/null && return; sleep 0.1; done; exit 9; }
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
"""


def script(text: str, first: int, second: int) -> str:
    """Return the commands of the page in order; between them waits for what runs in the background."""
    lines = [SHELL_HEAD % sys.executable]
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            command = line.removeprefix("$ ")
            if "# refused" in command:
                lines.append(f"{command.split('#')[0]} 2> refused.txt && exit 8")
            elif "postroad subscribe" in command:
                lines.append(f"{command.removesuffix('&')} > received.txt & subscriber=$!")
            else:
                lines.append(command if command.endswith("&") else f"{command} || exit 7")
        if "--config two.toml" in block:
            lines += [f"wait_for {first}", f"wait_for {second}"]
    lines += ["wait $subscriber"]
    return "\n".join(lines).replace("7401", str(first)).replace("7402", str(second))


def test_the_commands_of_the_page_guard_two_brokers(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    text, (first, second) = PAGE.read_text(encoding="utf-8"), free_ports(2)
    for name, body in re.findall(r"^```toml\n# (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(body.replace("7401", str(first)).replace("7402", str(second)))
    command = tmp_path / "bin" / "postroad"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m postroad "$@"\n')
    command.chmod(0o755)
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", script(text, first, second)],
        cwd=tmp_path,
        env={**os.environ, **own_environment(), "PATH": f"{command.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    received = (tmp_path / "received.txt").read_text()
    assert "large" in received
    assert "small" not in received
    assert "[error 902]" in (tmp_path / "refused.txt").read_text()
    assert "shop" in done.stdout
    for token in tmp_path.glob("*.token"):
        assert token.read_text().strip() not in done.stdout + done.stderr
    assert (tmp_path / "secrets" / "ca.key").stat().st_mode & 0o077 == 0
    assert time.monotonic() - begun < WITHIN_S
