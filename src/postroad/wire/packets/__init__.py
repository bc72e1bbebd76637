"""All packets, by range. Importing this package fills the registry."""

from postroad.wire.packets import session, telesto

__all__ = ["session", "telesto"]
