"""What a checker can find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from postroad.sim.history import Attributes

Kind: TypeAlias = Literal[
    "lost",
    "duplicated",
    "misordered",
    "phantom",
    "released",
    "kept",
    "stuck",
    "unbounded",
    "mistracked",
    "misreserved",
    "crashed",
]
KINDS: Final[tuple[Kind, ...]] = (
    "lost",  # a message that had to come was skipped
    "duplicated",  # a message came twice, or lies in a log twice
    "misordered",  # messages of one pubend came out of order
    "phantom",  # something came that should not
    "released",  # a log let go of what somebody still needed, or a gap was told where nothing is gone
    "kept",  # a log holds on to what nobody needs any more
    "stuck",  # all was healed, and still something did not arrive in time
    "unbounded",  # a broker's figure went over its bound
    "mistracked",  # a track lacks what happened, or claims what did not
    "misreserved",  # a reservation has no reason, or an admitted subscription lacks one
    "crashed",  # a machine raised an exception
)

Matches: TypeAlias = Callable[[str, Attributes], bool]  # (filter, attributes) -> does it match, by the oracle


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that was broken."""

    kind: Kind
    at: float
    text: str
    checker: str = ""  # that found it

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.3f} s: {self.text}"
