"""Messages as pages show them: values that JSON can carry, and never more of a payload than a screen needs."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Mapping
from typing import Any, Final

from postroad.client.connection import Client
from postroad.core.protocol.rights import Rights
from postroad.tracking.queries.explanation import Explanation
from postroad.tracking.queries.reconstruction import Trace
from postroad.types import AttributeValue, MessageId

PAYLOAD_SHOWN_MAX: Final = 4096
EXPLAINED_MAX: Final = 20
EXPLAINED_AT_ONCE: Final = 4
SAFE_INTEGER: Final = (1 << 53) - 1  # beyond it, JavaScript would round


def show_value(value: AttributeValue) -> Any:
    """Return a value that a browser reads without loss; bytes and long integers are named as what they are."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > SAFE_INTEGER:
        return {"integer": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def show_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    return {name: show_value(value) for name, value in sorted(attributes.items())}


def show_payload(payload: bytes) -> dict[str, Any]:
    """Return the beginning of a payload: as text if it is UTF-8, else in base64."""
    shown = payload[:PAYLOAD_SHOWN_MAX]
    described: dict[str, Any] = {"bytes": len(payload), "cut": len(payload) > PAYLOAD_SHOWN_MAX}
    text = shown.decode("utf-8", "ignore")
    if len(shown) - len(text.encode()) <= 3 * described["cut"]:  # only a character that was cut may be missing
        return {**described, "text": text}
    return {**described, "base64": base64.b64encode(shown).decode()}


def show_message(id: MessageId, attributes: Mapping[str, AttributeValue], payload: bytes) -> dict[str, Any]:  # noqa: A002
    return {
        "id": str(id),
        "time_ms": id.milliseconds,
        "broker": id.broker,
        "publisher": id.publisher,
        "attributes": show_attributes(attributes),
        "payload": show_payload(payload),
    }


def show_trace(trace: Trace) -> dict[str, Any]:
    """Return a trace as plain values."""
    return {
        "id": str(trace.id),
        "time_ms": trace.id.milliseconds,
        "origin": trace.origin,
        "publisher": trace.publisher,
        "found": trace.found,
        "complete": trace.complete,
        "published_probability": trace.published,
        "problem": trace.problem,
        "brokers": [
            {"broker": each.broker, "upstream": each.upstream, "probability": each.probability, "isolated": each.isolated}
            for each in trace.brokers
        ],
        "subscribers": [
            {"subscriber": each.subscriber, "broker": each.broker, "probability": each.probability, "isolated": each.isolated}
            for each in trace.subscribers
        ],
        "unasked": [{"broker": each.broker, "status": each.status.name.lower(), "reason": each.reason} for each in trace.unasked],
        "holes": [
            {"broker": each.broker, "from_ms": each.from_ms, "to_ms": each.to_ms, "reason": each.reason} for each in trace.holes
        ],
    }


async def show_whole(client: Client, rights: Rights, id: MessageId) -> dict[str, Any]:  # noqa: A002
    """Return the trace of a message, and the message itself if the log has it and the viewer may see it."""
    rights.traceable()
    trace = await client.trace(id)
    message = await client.message(id)
    shown: dict[str, Any] | None = None
    hidden = ""
    if message is None:
        hidden = "The log no longer contains the message, or its broker cannot be asked."
    elif rights.subscribe is not None and rights.subscribe.matches(message.attributes) is True:
        shown = show_message(message.id, message.attributes, message.payload)
    else:
        hidden = "Your identity may not see this message."
    return {"trace": show_trace(trace), "message": shown, "hidden": hidden}


def show_explanation(found: Explanation) -> dict[str, Any]:
    return {
        "verdict": found.verdict.value,
        "reason": found.reason,
        "subscriber": found.subscriber,
        "broker": found.broker,
        "filter": found.filter,
        "probability": found.probability,
    }


async def explain_others(client: Client, id: MessageId) -> dict[str, Any]:  # noqa: A002
    """Explain why durable subscriptions did not get a message: those furthest behind first, and not all where there are many."""
    trace, durables = await asyncio.gather(client.trace(id), client.durables())
    got = {receipt.subscriber for receipt in trace.subscribers if not receipt.isolated}
    others = [entry.name for entry in sorted(durables, key=lambda entry: (-entry.behind_ms, entry.name)) if entry.name not in got]
    turns = asyncio.Semaphore(EXPLAINED_AT_ONCE)

    async def explain(name: str) -> dict[str, Any]:
        async with turns:
            return show_explanation(await client.explain(id, name))

    explained = await asyncio.gather(*(explain(name) for name in others[:EXPLAINED_MAX]))
    return {"others": explained, "left_out": max(0, len(others) - EXPLAINED_MAX)}
