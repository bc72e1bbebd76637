"""When what was sent leaves: once per connection and turn, and at once where a turn says so."""

from __future__ import annotations

import asyncio

import pytest

from postroad.transport.flush_scheduler import FlushScheduler


def test_what_is_added_in_one_turn_leaves_at_the_end_of_it() -> None:
    """The loop is asked for one callback, however many connections there are."""
    left: list[str] = []

    async def send() -> None:
        writes = FlushScheduler(asyncio.get_running_loop())
        writes.add(lambda: left.append("a"))
        writes.add(lambda: left.append("b"))
        assert left == []
        await asyncio.sleep(0)
        assert left == ["a", "b"]
        writes.add(lambda: left.append("c"))
        await asyncio.sleep(0)

    asyncio.run(send())
    assert left == ["a", "b", "c"]


def test_what_is_sent_during_a_turn_has_left_when_it_is_over_even_if_it_fails() -> None:
    """What waited before leaves with it, in order; nothing leaves twice."""
    left: list[str] = []

    async def send() -> None:
        writes = FlushScheduler(asyncio.get_running_loop())

        def turn() -> None:
            writes.add(lambda: left.append("inside"))
            raise LookupError

        writes.add(lambda: left.append("before"))
        with pytest.raises(LookupError):
            writes.during(turn)
        assert left == ["before", "inside"]
        await asyncio.sleep(0)

    asyncio.run(send())
    assert left == ["before", "inside"]


def test_a_connection_that_fails_does_not_keep_others_from_being_written_to() -> None:
    """It is told to the loop's exception handler, as a failing callback is."""
    left: list[str] = []
    told: list[BaseException] = []

    def fail() -> None:
        raise OSError("gone")

    async def send() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        writes = FlushScheduler(loop)
        writes.add(fail)
        writes.during(lambda: writes.add(lambda: left.append("b")))

    asyncio.run(send())
    assert left == ["b"]
    assert [str(each) for each in told] == ["gone"]
