"""Tracking: the method ids of what `postroad.tracking.queries.packets` says of it (0x0400-0x04ff)."""

from __future__ import annotations

from postroad.tracking.queries import packets
from postroad.wire.registry import Direction, request, response

request(0x0401, Direction.CLIENT_TO_BROKER)(packets.AskTracks)
response(0x0402, Direction.BROKER_TO_CLIENT)(packets.TracksAnswered)

request(0x0411, Direction.BROKER_TO_BROKER)(packets.TrackQuery)
response(0x0412, Direction.BROKER_TO_BROKER)(packets.TrackReply)
