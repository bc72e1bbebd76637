"""Takes a client to the home of a shared subscription, the only broker that serves its members.

The broker where the client is names the home by its number. The client looks for it at its own addresses, and keeps its present
connection until it has one to the home. All that the client does moves with it, so two shared subscriptions with different homes
need two clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from postroad.client.link import Link

if TYPE_CHECKING:
    from postroad.client.connection import Client

log = logging.getLogger("postroad.client")


class SharedHomeSeeker:
    """Looks for the home of a shared subscription, one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._wanted: dict[int, int] = {}  # subscription -> home
        self._news = asyncio.Event()

    def named(self, subscription: int, home: int) -> None:
        """Look for the home of a subscription."""
        self._wanted[subscription] = home
        self._news.set()

    async def work(self) -> None:
        """Do what was asked for, for as long as the client lives."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                subscription, home = self._wanted.popitem()
                await self._go(subscription, home)

    async def _go(self, subscription: int, home: int) -> None:
        client = self._client
        if client.broker == home:
            return
        sharing = client.session.sharing
        has_another = any(each.active for each in sharing.memberships.values() if each.key != subscription)
        link = None if has_another else await self._find(home)
        if link is None:
            sharing.not_found(subscription, home, asyncio.get_running_loop().time())
            client._plan_pump()
            return
        log.info("going to broker %d, the home of a shared subscription", home)
        client._switch(link)

    async def _find(self, home: int) -> Link | None:
        """Connect to a broker by its number: at the address where it was seen, or at one of the others."""
        client = self._client
        seen = client._known.get(home)
        for address in dict.fromkeys([*([] if seen is None else [seen]), *client._addresses]):
            link = await client._try(address)
            if link is not None and link.broker == home:
                return link
            if link is not None:
                link.channel.close(reason="another broker was expected")
        return None
