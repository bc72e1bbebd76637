"""What a broker keeps on disk, and its twin in memory."""

from postroad.storage.base import LogSlice, Metadata, PubendLog
from postroad.storage.directory import BrokerStorage, open_broker_storage
from postroad.storage.memory import MemoryLog, MemoryMetadata
from postroad.storage.segment.log import LogOptions, SegmentLog
from postroad.storage.segment.recovery import TornTail
from postroad.storage.sqlite.metadata import SqliteMetadata

__all__ = [
    "BrokerStorage",
    "LogOptions",
    "LogSlice",
    "MemoryLog",
    "MemoryMetadata",
    "Metadata",
    "PubendLog",
    "SegmentLog",
    "SqliteMetadata",
    "TornTail",
    "open_broker_storage",
]
