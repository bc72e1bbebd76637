"""All packets, by range. Importing this package fills the registry."""

from postroad.wire.packets import overlay, session, telesto

__all__ = ["overlay", "session", "telesto"]
