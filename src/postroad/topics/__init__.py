"""Topics: each message exactly once to every subscriber, with their own protocol and addresses, and the shape of `postroad`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroad.topics import sync
    from postroad.topics.client import TopicClient, TopicMessage, connect

__all__ = ["TopicClient", "TopicMessage", "connect", "sync"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("postroad.topics.sync")
    if name in __all__:
        return getattr(import_module("postroad.topics.client"), name)
    raise AttributeError(f"module 'postroad.topics' has no attribute {name!r}")
