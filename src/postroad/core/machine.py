"""The contract every pure machine keeps.

A machine decides; a driver acts. The driver hands in facts (`receive`, `wake`), then takes `outputs()` and carries them out
in order. Time and randomness are arguments. The rules both drivers (`runtime`, `sim`) rely on:

- the same inputs give the same outputs, byte for byte: no clock, no `hash()`, no iteration over a set;
- outputs are ordered, and a `Persist` completes (is durable) before any later `Send` of the same machine leaves;
- `deadline()` is the latest time by which `wake` must be called, or None;
- everything that can grow has a named maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)
LinkT_contra = TypeVar("LinkT_contra", contravariant=True)
OutputT_co = TypeVar("OutputT_co", covariant=True)


class Machine(Protocol[MessageT_contra, LinkT_contra, OutputT_co]):
    """A pure state machine. `now` is seconds on the driver's monotonic clock."""

    def receive(self, message: MessageT_contra, *, link: LinkT_contra, now: float) -> None: ...

    def wake(self, *, now: float) -> None: ...

    def deadline(self) -> float | None: ...

    def outputs(self) -> Sequence[OutputT_co]: ...
