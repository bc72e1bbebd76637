"""Labels: knowledge under an epoch is complete for a filter if every interest sent since then covers it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.broker.machines import RisingEpochs

from postroad.core.broker.relaying.children import Child
from postroad.core.broker.relaying.upstream_interest import RESEND_S, UpstreamInterest
from postroad.core.filters.filter import Filter
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import Interest

PUBEND = 1
bounds = st.integers(0, 4)
filters = st.one_of(
    st.builds("x > {}".format, bounds),
    st.builds("x > {} AND s = 'a'".format, bounds),
    st.builds("x > {} OR s = 'b'".format, bounds),
    st.just("s = 'a'"),
    st.just(""),
).map(Filter)
steps = st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "send", "move", "lose"]), filters), max_size=40)


class Parent:
    """What a parent makes of the packets: the filters of each epoch."""

    def __init__(self) -> None:
        self.orders: list[Output] = []
        self.asking = UpstreamInterest(PUBEND, RisingEpochs(), self.orders)
        self.child = Child(1)
        self.interests: dict[int, list[Filter]] = {}

    def receive(self) -> list[Interest]:
        packets = [order.message for order in self.orders if isinstance(order, Send) and isinstance(order.message, Interest)]
        self.orders.clear()
        for packet in packets:
            if self.child.take(packet, Filter) is not None:
                self.interests[packet.epoch] = list(self.child.latest)
        return packets


@given(steps)
def test_a_label_stands_for_interests_that_cover_the_filter(steps: list[tuple[str, Filter]]) -> None:
    """Whatever comes, goes and moves: every interest sent since the label of a filter covers it, and the last one covers all."""
    parent = Parent()
    members: list[Filter] = []
    attached = True
    for step, filter_ in steps:
        match step:
            case "add":
                parent.asking.add((filter_,))
                members.append(filter_)
            case "remove" if filter_ in members:
                parent.asking.remove((filter_,))
                members.remove(filter_)
            case "send" if attached:
                parent.asking.refresh(1, 0.0)
            case "move":
                parent.asking.forget_parent()
                parent.child = Child(1)
                parent.asking.refresh(1, 0.0, anew=True)
                attached = True
            case "lose":
                parent.asking.forget_parent()
                attached = False
            case _:
                continue
        parent.receive()
        for member in members:
            since = parent.asking.since(member)
            if since is None:
                continue
            after = [interest for epoch, interest in parent.interests.items() if epoch >= since]
            assert after
            assert all(any(f.covers(member) for f in interest) for interest in after)
    parent.asking.refresh(1, 0.0, anew=not attached)
    assert all(parent.asking.since(member) is not None for member in members)


def test_what_is_covered_already_needs_no_new_epoch() -> None:
    """A filter below one that was sent takes over its label; a new one gets the epoch it is sent under."""
    parent = Parent()
    parent.asking.add([Filter("x > 1")])
    parent.asking.refresh(1, 0.0)
    parent.asking.add([Filter("x > 2")])
    assert parent.asking.since(Filter("x > 2")) == 1
    parent.asking.add([Filter("s = 'a'")])
    assert parent.asking.since(Filter("s = 'a'")) is None
    parent.asking.refresh(1, 0.0)
    assert parent.asking.since(Filter("s = 'a'")) == 2
    assert parent.asking.since(Filter("x > 7 AND s = 'a'")) in (1, 2)
    assert parent.asking.since(Filter("y > 7")) is None


def test_too_many_filters_become_one_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels stay true while the interest widens to everything and narrows again."""
    monkeypatch.setattr("postroad.core.broker.relaying.interest.INTEREST_MAX", 10)
    parent = Parent()
    many = [Filter(f"x = {i}") for i in range(15)]
    for filter_ in many:
        parent.asking.add((filter_,))
        parent.asking.refresh(1, 0.0)
        parent.receive()
    assert list(parent.child.latest) == [Filter("")]
    assert [parent.asking.since(f) for f in (many[0], many[10], many[14])] == [1, 11, 11]
    for filter_ in many[:10]:
        parent.asking.remove((filter_,))
        parent.asking.refresh(1, 0.0)
        parent.receive()
    assert list(parent.child.latest) == many[10:]
    assert parent.asking.since(many[14]) == 11


def test_a_parent_that_is_at_work_is_not_sent_everything_again() -> None:
    """A silent parent gets the full interest again, each time later; one that answers only has to answer the rest."""
    parent = Parent()
    parent.asking.add([Filter("x > 1")])
    parent.asking.refresh(1, 0.0)
    parent.receive()
    sent = []
    for tenth in range(1, 400):
        parent.asking.send_again(1, tenth / 10)
        sent += [tenth / 10 for packet in parent.receive() if packet.full]
    assert sent[0] == RESEND_S
    assert len(sent) <= 5
    assert all(later - earlier > 1.5 * RESEND_S for earlier, later in pairwise(sent))
    parent.asking.answered(parent.asking.epoch_sent, 40.0)
    parent.asking.send_again(1, 10_000.0)
    assert parent.receive() == []
