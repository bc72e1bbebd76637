"""All packets, by range. Importing this package fills the registry."""

from postroad.wire.packets import overlay, queues, session, telesto

__all__ = ["overlay", "queues", "session", "telesto"]
