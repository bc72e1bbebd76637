"""A broker's metadata in SQLite."""

from postroad.storage.sqlite.metadata import SqliteMetadata

__all__ = ["SqliteMetadata"]
