"""Postroad: messaging you can audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import AdmissionError, FilterSyntaxError, PostroadError
from postroad.types import MessageId

if TYPE_CHECKING:
    from postroad import sync as sync  # so that type checkers know the modules, too
    from postroad import testing as testing
    from postroad import topics as topics
    from postroad.client.admission import Advertisement
    from postroad.client.connection import Client, ClientConfig, connect
    from postroad.client.publisher import Publisher
    from postroad.client.queues import WorkQueue
    from postroad.client.running import run
    from postroad.client.subscription import Message, Subscription
    from postroad.client.telesto import Delivery, QueuedMessage
    from postroad.core.batch.batch import Batch
    from postroad.core.filters.filter import Filter
    from postroad.core.session.publishing import Throttled
    from postroad.security.credentials import ClientTls
    from postroad.tracking.queries.explanation import Explanation
    from postroad.tracking.queries.reconstruction import Trace

    __version__: str

__all__ = [
    "AdmissionError",
    "Advertisement",
    "Batch",
    "Client",
    "ClientConfig",
    "ClientTls",
    "Delivery",
    "Explanation",
    "Filter",
    "FilterSyntaxError",
    "Message",
    "MessageId",
    "PostroadError",
    "Publisher",
    "QueuedMessage",
    "Subscription",
    "Throttled",
    "Trace",
    "WorkQueue",
    "__version__",
    "connect",
    "run",
]

# Imported when first used, so that `import postroad.errors` does not load the client with its libraries.
_LATER: Final = {
    "Advertisement": "postroad.client.admission",
    "Batch": "postroad.core.batch.batch",
    "Client": "postroad.client.connection",
    "ClientConfig": "postroad.client.connection",
    "Delivery": "postroad.client.telesto",
    "ClientTls": "postroad.security.credentials",
    "Explanation": "postroad.tracking.queries.explanation",
    "Filter": "postroad.core.filters.filter",
    "Message": "postroad.client.subscription",
    "Publisher": "postroad.client.publisher",
    "QueuedMessage": "postroad.client.telesto",
    "Subscription": "postroad.client.subscription",
    "Throttled": "postroad.core.session.publishing",
    "Trace": "postroad.tracking.queries.reconstruction",
    "WorkQueue": "postroad.client.queues",
    "connect": "postroad.client.connection",
    "run": "postroad.client.running",
}
_MODULES: Final = ("sync", "testing", "topics")


def __dir__() -> list[str]:
    return [*__all__, "errors", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looking it up takes as long as starting Python
        return import_module("postroad.version").VERSION
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name in _MODULES:
        return import_module(f"postroad.{name}")
    raise AttributeError(f"module 'postroad' has no attribute {name!r}")
