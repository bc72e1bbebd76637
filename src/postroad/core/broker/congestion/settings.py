"""The parameters of congestion control: Table 1 of the paper, and the few that its text leaves open.

The fields of Table 1 name the paper's symbol. Two more of the table stand elsewhere: t_silence is `BrokerConfig.silence_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MS_PER_S: Final = 1000.0


class Rule(Enum):
    """How a broker controls congestion."""

    NONE = "none"  # as before: no queries, no limits
    PAPER = "paper"
    IMPROVED = "improved"


@dataclass(frozen=True, slots=True)
class CongestionSettings:
    """What an operator may set. Ticks are counted in milliseconds of the stream, rates in messages per second of a pubend."""

    rule: Rule = Rule.NONE
    query_s: float = 1.0  # between two queries (DCQ) of a pubend
    no_alert_s: float = 2.0  # t_nouca: without alerts for so long, a throttled rate is raised
    rate_step: float = 2.0  # r_min: the least increase of a rate; also the least rate
    increase: float = 0.05  # f_incr
    decrease: float = 0.5  # f_decr1
    decrease_near: float = 0.25  # f_decr2
    smoothing: float = 0.1  # alpha
    margin_live: float = 0.05  # delta t_nonrec, in tick seconds per second
    margin_recovering: float = 1.0  # delta t_rec, likewise
    lag_ms_max: int = 4_000  # delta t_s
    nack_ms: int = 100  # size_NACK
    nack_window_ms: int = 100  # nwnd_0
    nack_increase: float = 0.1  # alpha_NACK
    nack_decrease: float = 0.3  # beta_NACK
    receive_window_ms: int = 10_000  # a broker further behind than this is recovering
    receive_window_bytes: int = 16 << 20  # and keeps no more than this of what lies beyond its doubt horizon
