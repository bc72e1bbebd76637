"""What the console costs does not grow with the overlay: 1,000 brokers, 100,000 subscriptions."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import msgspec
from tests.console.large_overlay import BROKERS, SUBSCRIPTIONS, LargeOverlay

from postroad.client.connection import Client
from postroad.console.picture import ASKED_PER_ROUND, Picture
from postroad.console.shared import HELD_S, REST, SharedAnswer

PICTURE_BYTES_MAX = 1_500_000
SEARCH_CPU_S_MAX = 2.0  # of 100,000 subscriptions; a machine with other work on it is slow


def test_a_round_asks_a_bounded_number_of_brokers_and_all_have_their_turn() -> None:
    """After sixteen rounds everybody was heard; a picture stays below a megabyte and a half."""

    async def scenario() -> None:
        overlay = LargeOverlay()
        picture = Picture(cast("Client", overlay), 1)
        for _ in range(-(-BROKERS // ASKED_PER_ROUND)):
            before = overlay.asked
            await picture._ask()
            assert overlay.asked - before <= ASKED_PER_ROUND
        described = picture.describe()
        assert sum(each["up"] for each in described["brokers"]) == BROKERS
        assert len(described["links"]) == BROKERS - 1
        assert len(msgspec.json.encode(described)) < PICTURE_BYTES_MAX

    asyncio.run(scenario())


def test_subscriptions_come_in_pages_and_are_searched() -> None:
    """A page has 100 rows wherever it begins; a text that is nowhere is looked for in all, within bounds."""

    async def scenario() -> None:
        overlay = LargeOverlay()
        after = 0
        for _ in range(5):
            page = await overlay.status(1, after=after, page=100)
            assert [each.number for each in page.subscriptions] == list(range(after + 1, after + 101))
            assert page.subscription_count == SUBSCRIPTIONS
            after = page.subscriptions[-1].number
        last = await overlay.status(1, after=SUBSCRIPTIONS - 50, page=100)
        assert len(last.subscriptions) == 50
        began = time.process_time()
        assert (await overlay.status(1, page=100, wanted="nowhere")).subscriptions == []
        assert time.process_time() - began < SEARCH_CPU_S_MAX
        (found,) = (await overlay.status(1, page=100, wanted="desk-99999")).subscriptions
        assert found.number == 99_999

    asyncio.run(scenario())


def test_pages_share_an_answer_and_a_slow_one_is_asked_for_less_often() -> None:
    """Ten pages ask once; a question that took a second rests for half a minute."""

    async def scenario() -> None:
        now, asked = [0.0], 0

        async def ask() -> int:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            now[0] += 1.0
            return asked

        answer = SharedAnswer(ask, lambda: now[0])
        assert await asyncio.gather(*(answer.get() for _ in range(10))) == [1] * 10
        now[0] += REST - HELD_S
        assert await answer.get() == 1
        now[0] += 2 * HELD_S
        assert await answer.get() == 2

    asyncio.run(scenario())
