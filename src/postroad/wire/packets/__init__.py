"""All packets, by range. Importing this package fills the registry."""

from postroad.wire.packets import admission, overlay, queues, session, telesto, tracking

__all__ = ["admission", "overlay", "queues", "session", "telesto", "tracking"]
