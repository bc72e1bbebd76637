"""The blocking client of the topics service: the same names and promises as `postroad.topics.client`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from postroad.errors import TopicsError
from postroad.topics.client import BACKOFF_S, FACTOR_MAX, POLL_S, ClientCore, Name, repeated, to_bytes
from postroad.topics.machines.client import Finished, FinishPut, GetFrom, Operation, PutTo, Received, SubscribeTo, UnsubscribeFrom
from postroad.topics.machines.options import ClientOptions
from postroad.topics.machines.orders import Ask, Persist
from postroad.topics.machines.rows import SaveUnfinished
from postroad.topics.sockets import import_zmq


class TopicClient:
    """One client id, one process and one thread at a time."""

    def __init__(
        self,
        client: Name,
        proxies: Sequence[str] | Path,
        *,
        data: str | Path,
        patience_s: float = 0.0,
        options: ClientOptions | None = None,
        key: str | Path | None = None,
    ) -> None:
        self._zmq = import_zmq()
        context = self._zmq.Context()
        try:
            self._core = ClientCore(client, proxies, data=data, options=options, context=context, key=key)
        except BaseException:
            context.destroy(linger=0)
            raise
        self._context = context
        self._patience_s = patience_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._core.close()
        self._context.destroy(linger=0)

    def subscribe(self, topic: Name, *, patience_s: float | None = None) -> None:
        """Receive what is put on the topic from now on."""
        self._do(SubscribeTo(to_bytes(topic)), patience_s)

    def unsubscribe(self, topic: Name, *, patience_s: float | None = None) -> None:
        """Receive nothing more from the topic, not even what was put before."""
        self._do(UnsubscribeFrom(to_bytes(topic)), patience_s)

    def put(self, topic: Name, body: bytes, *, patience_s: float | None = None) -> None:
        """Publish; on success every subscriber of this moment will receive it. After an error, `finish_put` repeats it."""
        self._do(PutTo(to_bytes(topic), body), patience_s)

    def finish_put(self, topic: Name, *, patience_s: float | None = None) -> None:
        """Repeat the put that ended with an error or a crash, under its own counter: it happens once in all."""
        self._do(FinishPut(to_bytes(topic)), patience_s)

    def get(self, topic: Name, *, wait_s: float = 0.0, patience_s: float | None = None) -> Received | None:
        """Receive the next message; None when there is none within `wait_s`."""
        until = time.monotonic() + wait_s
        turn = 0
        while True:
            message = self._do(GetFrom(to_bytes(topic)), patience_s)
            left = until - time.monotonic()
            if message is not None or left <= 0:
                return message
            time.sleep(min(left, POLL_S[min(turn, len(POLL_S) - 1)]))
            turn += 1

    def last(self, topic: Name) -> Received | None:
        """Return the message received last, also after a crash: what `get` stored before it returned."""
        return self._core.last(topic)

    def unfinished(self, topic: Name) -> SaveUnfinished | None:
        """Return the put that may or may not have happened."""
        return self._core.machine.unfinished(to_bytes(topic))

    def forget_home(self, topic: Name) -> None:
        """Give up the copy this client lives on, when its server will never return."""
        self._core.machine.forget_home(to_bytes(topic))
        self._orders()

    def _do(self, operation: Operation, patience_s: float | None) -> Received | None:
        until = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        turn = 0
        while True:
            finished = self._once(operation, min(FACTOR_MAX, 2.0**turn))
            error = finished.error
            if error is None:
                return finished.message
            pause = BACKOFF_S[min(turn, len(BACKOFF_S) - 1)]
            if not error.retryable or time.monotonic() + pause > until:
                raise error
            time.sleep(pause)
            operation = repeated(operation)
            turn += 1

    def _once(self, operation: Operation, factor: float) -> Finished:
        core = self._core
        core.machine.begin(operation, now=core.clock.now(), factor=factor)
        try:
            while True:
                finished = self._orders()
                if finished is not None:
                    return finished
                self._wait()
        except BaseException:
            core.reload()  # interrupted, or the disk failed: the machine must not stay in the middle of an operation
            raise

    def _orders(self) -> Finished | None:
        core = self._core
        finished = None
        for order in core.machine.outputs():
            match order:
                case Persist(rows):
                    started = time.monotonic()
                    core.store.commit(rows)
                    core.machine.delayed(time.monotonic() - started)
                case Ask(address, request, payload):
                    core.dealer(address).send(request, payload)
                case Finished():
                    finished = order
                case _:
                    raise TopicsError("a client is never asked")
        return finished

    def _wait(self) -> None:
        core = self._core
        poller = self._zmq.Poller()
        for dealer in core.dealers.values():
            poller.register(dealer.socket, self._zmq.POLLIN)
        deadline = core.machine.deadline()
        assert deadline is not None, "an operation under way has a deadline"
        ready = dict(poller.poll(max(0, int((deadline - core.clock.now()) * 1000) + 1)))
        for dealer in list(core.dealers.values()):
            if dealer.socket in ready:
                for answer in dealer.receive():
                    core.machine.receive(answer, link=(), now=core.clock.now())
        core.machine.wake(now=core.clock.now())
