"""The life of a subscription in a pubend: which event leads where, and that no other one is taken."""

from __future__ import annotations

import pytest

from postroad.core.broker.subscribing.subscription import TRANSITIONS, Event, InvalidTransitionError, Progress, State

BEGINNING = [Event.ASKED, Event.ACTIVATED, Event.HELD, Event.STORED, Event.ANNOUNCED]


def progress_in(state: State) -> Progress:
    return Progress(state=state)


def test_a_subscription_begins_step_by_step_and_then_catches_up() -> None:
    """Interest, hold, disk, client: rows come only after all four."""
    progress = Progress()
    for event in BEGINNING:
        assert not progress.is_announced
        progress.apply(event)
    assert progress.state is State.CATCHING_UP


def test_a_subscription_moves_between_live_and_catching_up() -> None:
    """As often as its connection fills up and is drained."""
    progress = progress_in(State.CATCHING_UP)
    seen = []
    for event in (Event.CAUGHT_UP, Event.FELL_BEHIND) * 2:
        progress.apply(event)
        seen.append(progress.state)
    assert seen == [State.LIVE, State.CATCHING_UP] * 2


def test_a_position_may_be_replaced_only_while_the_subscription_waits() -> None:
    """Later, rows may have been sent from the former one."""
    for state in State:
        assert (Event.ASKED in TRANSITIONS[state]) == (state is State.WAITING)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_an_event_that_the_state_does_not_allow_is_an_error_and_changes_nothing(state: State, event: Event) -> None:
    """The error names both."""
    progress = progress_in(state)
    if event in TRANSITIONS[state]:
        progress.apply(event)
        assert progress.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(InvalidTransitionError, match=f"{event.name} .* {state.name}"):
            progress.apply(event)
        assert progress.state is state


def test_every_state_can_be_reached_and_left() -> None:
    """But for the end, which is final."""
    reached = {State.WAITING, *(after for exits in TRANSITIONS.values() for after in exits.values())}
    assert reached == set(State) == set(TRANSITIONS)
    assert [state for state in State if Event.ENDED not in TRANSITIONS[state]] == [State.ENDED]


def test_what_counts_of_a_start_grows_with_the_steps() -> None:
    """Held, then stored, then announced; what was once true stays so."""
    progress = Progress()
    seen = []
    for event in [*BEGINNING, Event.CAUGHT_UP]:
        progress.apply(event)
        seen.append((progress.is_held, progress.is_stored, progress.is_announced))
    assert seen == [(False,) * 3, (False,) * 3, (True, False, False), (True, True, False), (True,) * 3, (True,) * 3]
