"""Admission control: the method ids of `postroad.core.protocol.admission` (0x0500-0x05ff)."""

from __future__ import annotations

from typing import Final

from postroad.core.protocol import admission as packets
from postroad.wire.registry import Direction, one_way, request, response

_UP: Final = Direction.CLIENT_TO_BROKER
_DOWN: Final = Direction.BROKER_TO_CLIENT
_ACROSS: Final = Direction.BROKER_TO_BROKER

request(0x0501, _UP)(packets.Advertise)
response(0x0502, _DOWN)(packets.AdvertiseAccepted)
request(0x0503, _UP)(packets.Unadvertise)
response(0x0504, _DOWN)(packets.Unadvertised)
request(0x0505, _UP)(packets.ExplainAdmission)
response(0x0506, _DOWN)(packets.AdmissionExplained)
request(0x0507, _UP)(packets.AskAdmission)
response(0x0508, _DOWN)(packets.AdmissionState)
one_way(0x050A, _DOWN)(packets.SubscriptionRejected)

one_way(0x0511, _ACROSS)(packets.AdvertisementsWanted)
one_way(0x0513, _ACROSS)(packets.Advertisements)
one_way(0x0515, _ACROSS)(packets.ReservationScope)
one_way(0x0517, _ACROSS)(packets.Reserve)
one_way(0x0519, _ACROSS)(packets.Verdict)
one_way(0x051B, _ACROSS)(packets.Decision)
