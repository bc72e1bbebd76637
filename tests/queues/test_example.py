"""The example runs and prints what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_queue_worker_example_runs() -> None:
    """Every job is done once; the poisoned one ends among the dead letters."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    script = str(ROOT / "examples" / "queue_worker.py")
    lines = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment
    ).stdout.splitlines()
    assert sorted(line.split(" did ")[1] for line in lines if " did " in line) == ["cook", "paint", "put out the fire", "sweep"]
    assert " did put out the fire" in lines[0]
    assert lines[-1] == "dead letters: ['poison']"
