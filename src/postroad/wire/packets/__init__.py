"""All packets, by range. Importing this package fills the registry."""

from postroad.wire.packets import overlay, queues, session, telesto, tracking

__all__ = ["overlay", "queues", "session", "telesto", "tracking"]
