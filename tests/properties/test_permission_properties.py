"""Whatever a client asks for, on whichever path: everything that it obtains matches its permission, and what it asked for.

The paths are those on which a message can reach a client of the overlay: live from the same broker, live and repaired from
another one, while catching up from the log after an absence, by range from either broker's log, as one message by its id, and by
the filter of a bound queue. `tests/security/test_every_path.py` has the others, with a running broker. Filters are random; some
are written to escape from a careless conjunction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.broker.overlay import Overlay, Subscriber
from tests.core.filters.strategies import conditions
from tests.tracking.overlay import FakeOverlay

from postroad.core.filters.filter import Filter
from postroad.core.filters.language.text import to_text
from postroad.core.protocol.orders import ClientUp
from postroad.core.protocol.packets import Knowledge, RangeRead, ReadRange, pubend_id
from postroad.core.protocol.rights import OPEN, Rights
from postroad.errors import FilterError, PostroadError
from postroad.queues.permissions import QueuePermissions
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.tracking.queries.packets import AskTracks, TracksAnswered
from postroad.tracking.queries.questions import MessageAnswer, MessageQuestion
from postroad.types import AttributeValue
from postroad.wire.packets.queues import BindQueue

Attributes = Mapping[str, AttributeValue]
ESCAPES = ("a = 1) OR (TRUE", "TRUE OR", "TRUE) --", "a = 1 OR TRUE", "NOT (a = 2)", "", "a IS NULL OR a IS NOT NULL", "TRUE")

texts = conditions.map(to_text) | st.sampled_from(ESCAPES)
messages = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "i", "j.k", "x", "s", "not", "flag"]),
        st.integers(-5, 5) | st.sampled_from(["", "a", "ab", "%", 2**53, 1.5]) | st.booleans(),
        max_size=5,
    ),
    min_size=1,
    max_size=8,
)


def permission(text: str) -> Filter | None:
    try:
        return Filter(text)
    except FilterError:
        return None


def matches(text: str, attributes: Attributes) -> bool:
    """Evaluate a filter alone, as the oracle; what is no filter matches nothing."""
    found = permission(text)
    return found is not None and found.matches(attributes) is True


class Reader(Subscriber):
    """Also notes what it reads by range."""

    read: list[str]

    def take(self, packet: object, rows: object) -> None:
        super().take(packet, rows)  # type: ignore[arg-type]
        if isinstance(packet, RangeRead) and rows is not None:
            self.read += [message.payload.decode() for message in rows]  # type: ignore[attr-defined]


def obtained(rights: Rights, wanted: str, published: list[Attributes]) -> dict[str, list[str]]:
    """Publish at broker 1; return the names of the messages that a client obtains, by path."""
    overlay = Overlay.line(1, 2)
    publisher = overlay.publisher(1)
    overlay.rights = rights
    near, far, durable = (overlay.subscriber(at, wanted, name=name, wait=False) for at, name in ((1, None), (2, None), (1, "d")))
    overlay.run(1.0)
    durable.disconnect()
    for number, attributes in enumerate(published):
        with overlay.losing(Knowledge, to=2) if number % 2 else nullcontext():  # which is then asked for, and repaired
            publisher.publish(str(number), **attributes)  # type: ignore[arg-type]
            overlay.run(0.1)
    overlay.run(2.0)
    found = {"live": near.received, "live from another broker": far.received}
    back = overlay.subscriber(2, wanted, name="d", wait=False)
    overlay.run(3.0)
    found["catching up"] = back.received
    for at in (1, 2):
        reader = Reader(overlay, at, wanted, None)
        reader.read = []
        reader.send(ReadRange(pubend_id(1), wanted, 0, overlay.wall_ms << 16))
        overlay.run(1.0)
        found[f"read at broker {at}"] = reader.read
    return found


@settings(max_examples=25, deadline=None)
@given(seen=texts, wanted=texts, published=messages)
def test_everything_a_client_obtains_matches_its_permission(seen: str, wanted: str, published: list[Attributes]) -> None:
    allowed = permission(seen)
    if allowed is None:
        return
    rights = Rights("shop", subscribe=allowed, admin=False)
    should = [str(n) for n, each in enumerate(published) if matches(seen, each) and matches(wanted, each)]
    for path, names in obtained(rights, wanted, published).items():
        assert sorted(names) == should, path


@settings(max_examples=100, deadline=None)
@given(seen=texts, wanted=texts, published=messages)
def test_a_bound_queue_is_fed_with_what_its_owner_may_see(seen: str, wanted: str, published: list[Attributes]) -> None:
    allowed = permission(seen)
    if allowed is None:
        return
    rights, storage = Rights("shop", subscribe=allowed, admin=False), MemoryQueueStorage()

    async def bound() -> str:
        await storage.open()
        queue = await storage.create_queue("q")
        packet = await QueuePermissions(storage).permit(BindQueue(queue.queue_id, wanted), rights)
        assert isinstance(packet, BindQueue)
        return packet.filter_text

    try:
        text = asyncio.run(bound())
    except PostroadError:
        assert permission(wanted) is None
        return
    for each in published:
        assert matches(text, each) == (matches(seen, each) and matches(wanted, each))


@settings(max_examples=25, deadline=None)
@given(seen=st.sampled_from(["symbol = 'A'", "symbol <> 'B'", "symbol LIKE 'C%'", "FALSE", ""]), trace=st.booleans())
def test_a_message_asked_for_by_its_id_matches_too(seen: str, *, trace: bool) -> None:
    """Also when another broker answers: the client's own broker compares the message before it goes out."""
    overlay = FakeOverlay(1, 2)
    rights = Rights("shop", subscribe=Filter(seen), trace=trace, admin=False)
    for broker in (1, 2):
        overlay.lose_client(broker)
        overlay.machines[broker].fact(ClientUp(100 + broker, "app", OPEN if broker == 1 else rights), now=overlay.now)
    ids = {symbol: overlay.publish(1, symbol=symbol)[0] for symbol in ("A", "B", "CC")}
    overlay.run(0.5)
    for symbol, id_ in ids.items():
        overlay.send(2, AskTracks(1, MessageQuestion(id_)))
        overlay.run(0.5)
        answer = overlay.answers(2, TracksAnswered)[-1].answer
        assert isinstance(answer, MessageAnswer)
        visible = Filter(seen).matches({"symbol": symbol}) is True
        assert (answer.row is not None) == visible
        assert bool(answer.tick) == (visible or trace)
