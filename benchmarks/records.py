"""Raw results: what was measured, with the machine, the time and the state of the code, in `benchmarks/results/`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"


def circumstances() -> dict[str, Any]:
    """Say what a figure cannot be read without. Take it before the measuring: the load is that of other programs."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": _code(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
    }


def save(path: Path, machine: dict[str, Any], results: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n", encoding="utf-8")


def _code() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=RESULTS.parent).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
