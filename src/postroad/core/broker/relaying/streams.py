"""The streams that this broker relays, by pubend."""

from __future__ import annotations

from postroad.core.broker.context import Context
from postroad.core.broker.relaying.stream import Stream


class Streams(dict[int, Stream]):
    """One stream per pubend: hosted ones from the start, others from their first mention on."""

    def __init__(self, context: Context, hosted: tuple[int, ...]) -> None:
        super().__init__()
        self._context = context
        self._hosted = hosted
        for pubend in hosted:
            self.ensure(pubend)

    def ensure(self, pubend: int) -> Stream:
        """Return the stream of a pubend; create it at the first mention of the pubend."""
        stream = self.get(pubend)
        if stream is None:
            context = self._context
            stream = self[pubend] = Stream(
                pubend,
                hosted_here=pubend in self._hosted,
                cache_bytes=context.config.cache_bytes,
                epochs=context,
                orders=context.orders,
            )
        return stream
