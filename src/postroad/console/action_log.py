"""The audit log of the console: one JSON line for each action, by whom, on what, and what came of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

ACTION_LOG_NAME: Final = "console-actions.jsonl"
LOG_MODE: Final = 0o600
LOG_BYTES_MAX: Final = 16 << 20  # then the file begins again; the one before is kept


class ActionLog:
    """A file that only grows, up to its bound."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ACTION_LOG_NAME

    def write(self, identity: str, action: str, details: dict[str, Any], outcome: str) -> None:
        line = json.dumps(
            {"time_ms": time.time_ns() // 1_000_000, "identity": identity, "action": action, **details, "outcome": outcome}
        )
        if self._path.exists() and self._path.stat().st_size > LOG_BYTES_MAX:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line + "\n")
