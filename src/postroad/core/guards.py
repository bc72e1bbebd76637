"""Switches that take a safety mechanism out, one for each of the nine traps of `docs/internals/overlay.md`.

They exist so that tests can show that the checkers catch the loss which the mechanism prevents. Nothing in the product's
configuration reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Guards:
    silence_is_labelled: bool = True
    subscribe_waits_for_path: bool = True
    horizon_is_reserved: bool = True
    publishers_are_remembered: bool = True
    holds_survive_links: bool = True
    position_of_client_wins: bool = True
    control_is_never_dropped: bool = True
    knowledge_is_idempotent: bool = True
    doubtful_messages_stay: bool = True


ALL_ON: Final = Guards()
