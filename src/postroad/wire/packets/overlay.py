"""Publish and subscribe: the method ids of `postroad.core.protocol.packets` (clients 0x0200-0x02ff, brokers 0x0300-0x03ff)."""

from __future__ import annotations

from typing import Final

from postroad.core.protocol import packets
from postroad.wire.registry import Direction, one_way, request, response

_UP: Final = Direction.CLIENT_TO_BROKER
_DOWN: Final = Direction.BROKER_TO_CLIENT
_ACROSS: Final = Direction.BROKER_TO_BROKER

ASCENDING: Final = frozenset({packets.Deliver, packets.Knowledge, packets.CatchUpReply, packets.RangeRead})
"""Packets whose rows have ticks, strictly ascending; the rows of `PublishColumns` have none yet."""

CARRIES_ROWS: Final = ASCENDING | {packets.PublishColumns}
"""Packets with a batch as body; an empty body stands for no rows."""

request(0x0201, _UP)(packets.OpenPublisher)
response(0x0202, _DOWN)(packets.PublisherOpened)
one_way(0x0203, _UP)(packets.Publish)
one_way(0x0204, _DOWN)(packets.PublishAcknowledged)
one_way(0x0205, _UP, carries_body=True)(packets.PublishColumns)
one_way(0x0206, _DOWN)(packets.PublishRefused)

request(0x0211, _UP)(packets.Subscribe)
response(0x0212, _DOWN)(packets.Subscribed)
request(0x0213, _UP)(packets.Unsubscribe)
response(0x0214, _DOWN)(packets.Unsubscribed)
one_way(0x0215, _UP)(packets.Acknowledge)
one_way(0x0216, _DOWN)(packets.Started)
one_way(0x0217, _UP)(packets.Flow)
one_way(0x0218, _DOWN, carries_body=True)(packets.Deliver)
one_way(0x021A, _DOWN)(packets.Advance)
one_way(0x021C, _DOWN)(packets.Gap)
one_way(0x021E, _DOWN)(packets.DeliverRows)
one_way(0x0220, _DOWN)(packets.AcknowledgementStored)
one_way(0x0230, _DOWN)(packets.Joined)
one_way(0x0231, _UP)(packets.AcknowledgeRows)
one_way(0x0232, _DOWN)(packets.RowsAcknowledged)
one_way(0x0234, _DOWN)(packets.SharedHome)

request(0x0221, _UP)(packets.ListPubends)
response(0x0222, _DOWN)(packets.Pubends)
request(0x0223, _UP)(packets.ReadRange)
response(0x0224, _DOWN, carries_body=True)(packets.RangeRead)
request(0x0225, _UP)(packets.OpenEpoch)
response(0x0226, _DOWN)(packets.EpochOpened)
request(0x0227, _UP)(packets.SealEpoch)
response(0x0228, _DOWN)(packets.EpochSealed)

request(0x0541, _UP)(packets.LimitLink)
response(0x0542, _DOWN)(packets.LinkLimited)

one_way(0x0301, _ACROSS)(packets.LinkState)
request(0x0303, _ACROSS)(packets.Interest)
response(0x0304, _ACROSS)(packets.InterestActive)
one_way(0x0305, _ACROSS, carries_body=True)(packets.Knowledge)
one_way(0x0307, _ACROSS)(packets.Released)
one_way(0x0309, _ACROSS)(packets.DurableHome)
one_way(0x030B, _ACROSS)(packets.Nack)
one_way(0x0325, _ACROSS)(packets.CongestionQuery)
one_way(0x0327, _ACROSS)(packets.CongestionAlert)
one_way(0x0329, _ACROSS)(packets.LogDamaged)
one_way(0x032B, _ACROSS)(packets.HorizonsReserved)

request(0x0311, _ACROSS)(packets.Hold)
response(0x0312, _ACROSS)(packets.HoldConfirmed)
request(0x0313, _ACROSS)(packets.CatchUp)
response(0x0314, _ACROSS, carries_body=True)(packets.CatchUpReply)
request(0x0315, _ACROSS)(packets.HomeQuery)
response(0x0316, _ACROSS)(packets.HomeReply)
one_way(0x0317, _ACROSS)(packets.Remembered)
request(0x0319, _ACROSS)(packets.NameReserve)
response(0x031A, _ACROSS)(packets.NameAnswer)
one_way(0x031B, _ACROSS)(packets.NameRelease)
request(0x0321, _ACROSS)(packets.PubendsQuery)
response(0x0322, _ACROSS)(packets.PubendsReply)
