"""The segmented pubend log."""

from postroad.storage.segment.log import LogOptions, SegmentLog
from postroad.storage.segment.recovery import TornTail

__all__ = ["LogOptions", "SegmentLog", "TornTail"]
