"""Signals of a broker before it runs, from the first line of our own code on. Imported before anything that takes time.

SIGTERM and SIGINT end a program that has not begun with code 0 and one line. Nothing is open yet, so nothing is lost.
SIGHUP is ignored: a broker outlives the terminal it was started from, and reads its configuration only when it starts.
Once the event loop runs, `runtime/serve.py` replaces these handlers.
"""

import os
import signal
import sys
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    """End the process whatever is being imported; an exception could be caught on its way."""
    os.write(2, f"{signal.Signals(number).name} received before the start\n".encode())
    os._exit(0)


def hold_signals() -> None:
    """Handle the signals of a process that is about to become a broker."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


if sys.argv[1:2] == ["broker"] and os.path.basename(sys.argv[0]) in {"postroad", "__main__.py", "-m"}:  # noqa: PTH119  # quick
    hold_signals()
