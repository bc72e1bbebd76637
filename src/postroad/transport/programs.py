"""How to start a program of ours as a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """Return an environment in which that finds the same code as here, installed or not."""
    source = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
