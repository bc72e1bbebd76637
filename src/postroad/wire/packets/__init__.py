"""All packets, by range. Importing this package fills the registry."""

from postroad.wire.packets import queues, session, telesto

__all__ = ["queues", "session", "telesto"]
