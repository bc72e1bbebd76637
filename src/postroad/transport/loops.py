"""The event loop: uvloop where it is installed, the one of the standard library otherwise."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the fastest loop there is. POSTROAD_LOOP=asyncio asks for the standard one."""
    if os.environ.get("POSTROAD_LOOP") != "asyncio":
        try:
            loop = importlib.import_module("uvloop").new_event_loop()
        except ImportError:
            pass
        else:
            assert isinstance(loop, asyncio.AbstractEventLoop)
            return loop
    return asyncio.new_event_loop()


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do as `asyncio.run`, on the fastest loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
