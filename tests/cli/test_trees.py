"""Traces as trees and as JSON."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console, RenderableType

from postroad.cli.use.trees import draw, draw_explanation, explanation_json, trace_json
from postroad.tracking.queries.explanation import Explanation, Verdict
from postroad.tracking.queries.questions import Status
from postroad.tracking.queries.reconstruction import Receipt, Trace, TrackHole, Unasked, Visit
from postroad.types import AttributeValue, MessageId, format_time

ID = MessageId.make(7, 1, 1_790_000_000_123, 4)


def shown(drawn: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(drawn)
    return out.getvalue()


def test_a_trace_is_drawn_from_the_publisher_down() -> None:
    """Brokers stand below those they got the message from, subscribers at their brokers, doubts beside them."""
    trace = Trace(
        ID,
        0.0,
        (Visit(1, None, 0.0), Visit(2, 1, 0.0), Visit(3, 2, 1e-5), Visit(6, 2, 1e-5, isolated=True)),
        (Receipt("durable", 3, 0.0), Receipt("near", 1, 0.0)),
        (),
        (),
    )
    lines = shown(draw(trace)).splitlines()
    assert lines[0].startswith(f"message {ID}  2026-09-21 14:13:20.123 UTC")
    assert lines[1:] == [
        "publisher 7 at broker 1",
        "└── broker 1 (origin)",
        "    ├── subscriber near",
        "    └── broker 2",
        "        ├── broker 3  (false with probability 1e-05)",
        "        │   └── subscriber durable",
        "        └── broker 6  (false with probability 1e-05)  isolated: likely a false positive",
    ]


def test_what_hangs_behind_a_broker_that_could_not_be_asked_is_drawn_there() -> None:
    """With the reason, and with holes."""
    trace = Trace(
        ID,
        None,
        (Visit(5, 4, 0.0),),
        (Receipt("s", 5, 0.0), Receipt("lone", 9, 0.1, isolated=True)),
        (Unasked(1, Status.SILENT, "no answer within 5 s"), Unasked(4, Status.UNREACHABLE, "no path leads to it now")),
        (TrackHole(5, "crash", 1, 2, "what incarnation 2 had not written yet was lost"),),
    )
    text = shown(draw(trace))
    for part in (
        "publisher 7 at broker 1  (not in its publisher history)",
        "broker 1 (origin), which did not answer",
        "broker 4, which did not answer\n│   └── broker 5\n│       └── subscriber s",
        "broker 9: subscriber lone  (false with probability 0.1)",
        "broker 4 did not answer: no path leads to it now",
        "tracks of broker 5 may be incomplete (crash)",
    ):
        assert part in text, text


def test_a_message_that_nobody_knows_is_said_to_be_so() -> None:
    """And what is wrong with its id, where that is known."""
    nobody = Trace(ID, None, (), (), (), ())
    assert "no broker that was asked knows this message" in shown(draw(nobody))
    wrong = Trace(ID, None, (), (), (), (), "the id's timestamp lies 9 s in the future")
    assert "9 s in the future" in shown(draw(wrong))


def test_names_from_others_cannot_give_orders_to_a_terminal() -> None:
    """A client chooses part of its subscribers' names."""
    trace = Trace(ID, 0.0, (Visit(1, None, 0.0),), (Receipt("~1.1.1@\x1b]0;owned\x07\x1b[2J[red]x", 1, 0.0),), (), ())
    text = shown(draw(trace))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x" in text


def test_json_holds_everything() -> None:
    """As plain values that any program reads."""
    trace = Trace(
        ID,
        0.0,
        (Visit(1, None, 0.0), Visit(2, 1, 1e-5)),
        (Receipt("s", 2, 1e-5),),
        (Unasked(3, Status.OFF, "off"),),
        (TrackHole(2, "dropped", 0, 5, "old"),),
    )
    plain = msgspec.json.decode(msgspec.json.encode(trace_json(trace)))
    assert plain["brokers"][1] == {"broker": 2, "upstream": 1, "probability": 1e-5, "isolated": False}
    assert plain["unasked"] == [{"broker": 3, "status": "off", "reason": "off"}]
    assert plain["holes"] == [{"broker": 2, "kind": "dropped", "from_ms": 0, "to_ms": 5, "reason": "old"}]
    assert (plain["found"], plain["published"], plain["origin"], plain["publisher"]) == (True, True, 1, 7)


def test_an_explanation_shows_the_filter_and_the_message() -> None:
    """Bytes too, and everything where the filter is blank."""
    trace = Trace(ID, 0.0, (), (), (), ())
    attributes: dict[str, AttributeValue] = {"price": 5, "blob": b"\0"}
    found = Explanation(Verdict.FILTERED, "its filter did not match", "s", trace, 2, "price > 9", 0.0, attributes, 7)
    text = shown(draw_explanation(found))
    assert text.startswith("filtered: its filter did not match")
    assert "price > 9" in text
    assert "blob = b'\\x00', price = 5" in text
    plain = msgspec.json.decode(msgspec.json.encode(explanation_json(found)))
    assert plain["attributes"] == {"blob": {"base64": "AA=="}, "price": 5}
    assert (plain["verdict"], plain["broker"], plain["tick"]) == ("filtered", 2, "7")


def test_a_time_beyond_the_calendar_is_shown_as_it_is() -> None:
    """Ids may claim any."""
    assert format_time((1 << 48) - 1) == "281474976710655 ms"
    assert format_time(0) == "1970-01-01 00:00:00.000 UTC"
