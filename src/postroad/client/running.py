"""Running a program: Ctrl-C and SIGTERM end it in order and without a traceback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from postroad.transport import loops

ResultT = TypeVar("ResultT")


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run the main coroutine of a program and return its result, like `asyncio.run`.

    Ctrl-C and SIGTERM cancel the coroutine, so that handlers finish what they have begun and the client leaves in order.
    Then the program ends without a traceback, with the exit code 130 or 143. A second Ctrl-C ends it at once. The event loop
    is uvloop where it is installed.

    ```python
    async def main():
        async with postroad.connect() as client:
            print(await client.publish({"greeting": "hello"}))


    postroad.run(main())
    ```
    """
    terminated = False

    async def until_terminated() -> ResultT:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        try:
            loop.add_signal_handler(signal.SIGTERM, terminate)
        except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows: no signals here
            return await main
        try:
            return await main
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    try:
        return loops.run(until_terminated())
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
