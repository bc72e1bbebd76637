"""The names of `postroad.topics`, blocking: a thin face over the asyncio client, which runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from postroad.topics import client as asynchronous
from postroad.topics.client import Name, TopicMessage
from postroad.topics.machines.options import ClientOptions
from postroad.transport.background import BackgroundLoop, Blocking, run, wait_for

__all__ = ["TopicClient", "TopicMessage", "connect"]


def connect(
    proxies: str | Path | Iterable[str] | None = None,
    *,
    name: Name,
    data: str | Path | None = None,
    timeout: float = 5.0,
    key: str | Path | None = None,
    options: ClientOptions | None = None,
) -> TopicClient:
    """Return a client; the arguments are those of `postroad.topics.connect`.

    ```python
    with postroad.topics.sync.connect("tcp://127.0.0.1:7101", name="carol", data="carol-data") as carol:
        carol.subscribe("news")
        message = carol.get("news", timeout=1)  # None after a second without a message
    ```
    """
    return TopicClient(asynchronous.connect(proxies, name=name, data=data, timeout=timeout, key=key, options=options))


class TopicClient(Blocking[asynchronous.TopicClient]):
    """See `postroad.topics.TopicClient`. It lives until it is closed.

    ```python
    with postroad.topics.sync.connect("tcp://127.0.0.1:7101", name="dan", data="dan-data") as dan:
        dan.subscribe("headlines")
        dan.put("headlines", json={"headline": "hello"})
    ```
    """

    subscribe = wait_for(asynchronous.TopicClient.subscribe)
    unsubscribe = wait_for(asynchronous.TopicClient.unsubscribe)
    put = wait_for(asynchronous.TopicClient.put)
    finish_put = wait_for(asynchronous.TopicClient.finish_put)
    get = wait_for(asynchronous.TopicClient.get)
    last = run(asynchronous.TopicClient.last)
    unfinished = run(asynchronous.TopicClient.unfinished)
    forget_home = wait_for(asynchronous.TopicClient.forget_home)

    def __init__(self, inner: asynchronous.TopicClient) -> None:
        super().__init__(BackgroundLoop("postroad-topics"), inner)
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave. What has begun and not ended may be finished later."""
        if not self._closed:
            self._closed = True
            try:
                self.loop.call(self.inner.close())
            finally:
                self.loop.stop()
