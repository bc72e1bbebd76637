"""Subscriptions that wait for a label, found when the label is reached."""

from __future__ import annotations

from postroad.core.broker.subscribing.waiting import Waiting


def test_one_without_a_label_is_found_after_others_were_discarded() -> None:
    """What waited and ended must not hide who came while there was no parent."""
    waiting: Waiting[str] = Waiting()
    for number in range(3):
        waiting.add(number, "ended", number + 1)
        waiting.discard(number)
    waiting.add(7, "here", None)
    assert waiting.unlabelled() == [(7, "here")]


def test_one_without_a_label_is_found_beside_one_that_was_labelled_twice() -> None:
    """A thing that waits again for another label counts once."""
    waiting: Waiting[str] = Waiting()
    waiting.add(1, "labelled", 5)
    waiting.add(1, "labelled", 6)
    waiting.add(2, "unlabelled", None)
    assert waiting.unlabelled() == [(2, "unlabelled")]


def test_one_that_got_its_label_is_taken_once() -> None:
    """With a label it waits for that; taken, it waits no longer."""
    waiting: Waiting[str] = Waiting()
    waiting.add(1, "one", None)
    waiting.add(1, "one", 4)
    assert waiting.unlabelled() == []
    assert list(waiting.take(3)) == []
    assert list(waiting.take(4)) == ["one"]
    assert list(waiting.take(9)) == []
    assert len(waiting) == 0


def test_one_that_lost_its_label_is_not_taken() -> None:
    """Without a parent the label it waited for means nothing."""
    waiting: Waiting[str] = Waiting()
    waiting.add(1, "one", 4)
    waiting.add(1, "one", None)
    assert list(waiting.take(9)) == []
    assert waiting.unlabelled() == [(1, "one")]
