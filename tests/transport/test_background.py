"""Blocking twins of asyncio classes: same names, parameters and documentation, executed in a thread of their own."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.transport.background import BackgroundLoop, Blocking, iterate, run, wait_for, wait_for_twin


class Counter:
    """An asyncio class to make a twin of."""

    def __init__(self, start: int) -> None:
        self.value = start
        self.threads: set[str] = set()

    async def add(self, number: int, *, times: int = 1) -> int:
        """Add a number and return the sum."""
        self.threads.add(threading.current_thread().name)
        self.value += number * times
        return self.value

    def read(self) -> int:
        self.threads.add(threading.current_thread().name)
        return self.value

    async def count(self, upto: int) -> AsyncIterator[int | None]:
        self.threads.add(threading.current_thread().name)
        for number in range(self.value, upto):
            yield number or None
        if upto > 10:
            raise ValueError("too far")

    async def copy(self) -> Counter:
        return Counter(self.value)


class BlockingCounter(Blocking[Counter]):
    add = wait_for(Counter.add)
    count = iterate(Counter.count)
    read = run(Counter.read)

    def __exit__(self, *_: object) -> None:
        self.loop.stop()


class Copying(BlockingCounter):
    copy = wait_for_twin(Counter.copy, BlockingCounter)


@pytest.fixture
def counter() -> Iterator[Copying]:
    with Copying(BackgroundLoop("counting"), Counter(0)) as counter:
        yield counter


def test_every_method_runs_in_the_thread_of_the_loop(counter: Copying) -> None:
    assert counter.add(2, times=3) == 6
    assert counter.read() == 6
    assert list(counter.count(8)) == [6, 7]
    assert counter.inner.threads == {"counting"}


def test_none_among_the_items_does_not_end_an_iteration(counter: Copying) -> None:
    assert list(counter.count(3)) == [None, 1, 2]


def test_an_iteration_raises_what_the_asynchronous_one_raises_after_its_items(counter: Copying) -> None:
    items = counter.count(11)
    assert [next(items) for _ in range(11)] == [None, *range(1, 11)]
    with pytest.raises(ValueError, match="too far"):
        next(items)


def test_a_result_with_a_twin_shares_the_loop(counter: Copying) -> None:
    counter.add(4)
    copied = counter.copy()
    assert copied.loop is counter.loop
    assert copied.add(1) == 5
    assert counter.read() == 4


def test_a_method_keeps_the_parameters_and_the_documentation_of_its_original() -> None:
    assert inspect.signature(Copying.add) == inspect.signature(Counter.add)
    assert inspect.getdoc(Copying.add) == "Add a number and return the sum."
