"""What a broker reports of its streams and subscriptions when somebody asks how it is. Reading it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from postroad.core.broker.publishing.pubend import Pubend
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.broker.subscribing.subscription import State, Subscription
from postroad.core.broker.views import MemberCounts, RelayedStream
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.status import FILTER_SHOWN_MAX, STREAMS_MAX, StreamReport, SubscriptionReport


def report_streams(
    pubends: Mapping[int, Pubend], streams: Mapping[int, RelayedStream], edge: Edge, cached: Mapping[int, int]
) -> list[StreamReport]:
    """Report every stream that this broker hosts or has heard of, by pubend."""
    reports = []
    for pubend in sorted(streams)[:STREAMS_MAX]:
        stream, live = streams[pubend], edge.streams[pubend]
        report = StreamReport(
            pubend,
            stream.hosted_here,
            known=stream.cache.frontier,
            delivered=live.delivered,
            lag_ms=live.lag_ms if live.engaged else 0,
            cache_bytes=cached[pubend],
            engaged=live.engaged,
            is_recovering=live.recovering,
        )
        hosted = pubends.get(pubend)
        reports.append(report if hosted is None else _with_publishing(report, hosted))
    return reports


def _with_publishing(report: StreamReport, hosted: Pubend) -> StreamReport:
    throttle = hosted.throttle
    return msgspec.structs.replace(
        report,
        published_rows=hosted.published.total,
        waiting_rows=hosted.backlog_rows,
        rate_limit=0.0 if throttle is None else throttle.rate,
        throttled_since_ms=0 if throttle is None else throttle.since_ms,
        throttled_by=0 if throttle is None else throttle.broker,
    )


def report_subscriptions(
    edge: Edge, clients: Mapping[LinkId, str], after: int, page: int, wanted: str, sharing: MemberCounts | None = None
) -> list[SubscriptionReport]:
    """Report up to `page` subscriptions with numbers above `after`; with `wanted`, those with this text in them."""
    reports: list[SubscriptionReport] = []
    for number in sorted(edge.subscriptions):
        if len(reports) >= page:
            break
        if number <= after:
            continue
        subscription = edge.subscriptions[number]
        client = clients.get(subscription.link, "")
        if sharing is not None and subscription.is_shared and subscription.name is not None:
            client = f"{sharing.members_of(subscription.name)} members"
        if wanted and not any(wanted in text for text in (subscription.name or "", client, str(subscription.filter))):
            continue
        reports.append(_report_subscription(edge, subscription, client))
    return reports


def _report_subscription(edge: Edge, subscription: Subscription, client: str) -> SubscriptionReport:
    return SubscriptionReport(
        subscription.number,
        subscription.link,
        client,
        subscription.name or "",
        str(subscription.filter)[:FILTER_SHOWN_MAX],
        max((_lag_ms(edge, subscription, pubend) for pubend in subscription.progress), default=0),
        subscription.answered,
        subscription.open,
    )


def _lag_ms(edge: Edge, subscription: Subscription, pubend: int) -> int:
    """Return how far a subscription is behind what this broker knows of a stream."""
    progress = subscription.progress[pubend]
    if progress.state is State.LIVE:
        return edge.streams[pubend].lag_ms
    if progress.state is not State.CATCHING_UP:
        return 0
    return edge.streams[pubend].lag_from(edge.reached(progress, pubend))
